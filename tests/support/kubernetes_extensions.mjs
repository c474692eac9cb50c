// Says what is wrong with objects of Kubernetes' extensions, by the schemas that packages of Node.js have of them:
// reads a JSON list of objects on standard input, writes a list of sentences for each.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const packages = {
  "keda.sh": "keda",
  "monitoring.coreos.com": "prometheus-operator",
  "cert-manager.io": "cert-manager",
};

const models = resolve(process.argv[2], "node_modules/@kubernetes-models");
const answers = [];
for (const one of JSON.parse(readFileSync(0, "utf8"))) {
  const [group, version] = one.apiVersion.split("/");
  const path = resolve(models, packages[group], group, version, `${one.kind}.js`);
  const model = await import(pathToFileURL(path).href);
  const Kind = model[one.kind] ?? model.default[one.kind];
  try {
    new Kind(one).validate();
    answers.push([]);
  } catch (error) {
    answers.push((error.errors ?? [error]).map((found) => `${found.instancePath ?? ""} ${found.message}`));
  }
}
process.stdout.write(JSON.stringify(answers));
