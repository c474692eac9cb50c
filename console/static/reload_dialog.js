// Services told to read their configuration again, and what came of it.

import { call } from "./api.js";
import { ask } from "./dialog.js";
import { h } from "./dom.js";
import { field } from "./fields.js";

const ALL = [["broker ", "all brokers"], ["gateway ", "all gateways"], ["registry ", "all registries"]];

const came = (row) => row.error ? `nothing was changed: ${row.error}`
  : [row.changed.length ? `changed: ${row.changed.join(", ")}` : "nothing to change", row.waiting.length && `waits for a restart: ${row.waiting.join(", ")}`].filter(Boolean).join("; ");

export async function reloadConfiguration(brokers) {
  const answer = await ask({
    title: "Reload the configuration",
    body: "Each process reads the file, the environment and the settings that it was started with again. What can change is applied at once; a configuration that is wrong changes nothing.",
    fields: [field("which", "Which services", { options: [...ALL, ...brokers.map((name) => [`broker ${name}`, `broker ${name}`])] })],
    action: "Reload",
    submit: ({ which }) => {
      const [service, name] = [which.slice(0, which.indexOf(" ")), which.slice(which.indexOf(" ") + 1)];
      return call("/api/v1/configuration/reload", { method: "POST", body: { service, name } });
    },
  });
  if (!answer) return;
  await ask({
    title: "What came of it",
    body: [answer.notice, h("dl.facts", { id: "reloaded" }, answer.reloaded.map((row) => h("div", {}, h("dt", {}, `${row.service} ${row.name}`), h("dd", {}, came(row)))))].filter(Boolean),
    action: null,
  });
}
