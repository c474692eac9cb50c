// A message from the page.

import { call, path } from "./api.js";
import { ask } from "./dialog.js";
import { field } from "./fields.js";
import { say } from "./dom.js";

// What was sent last, so that the next one is a change of it.
const last = { tag: "", keys: "", properties: "", body: "" };

const properties = (typed) => Object.fromEntries(typed.split("\n").filter((line) => line.trim()).map((line) => {
  const at = line.indexOf("=");
  return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
}));

export async function publish(topic) {
  const sent = await ask({
    title: `Publish to ${topic}`,
    fields: [
      field("body", "Payload", { rows: 5, value: last.body, hint: "text in UTF-8; JSON if you like" }),
      field("tag", "Tag", { value: last.tag, spellcheck: "false", autocapitalize: "off", hint: `the levels behind the topic: with 1/temp MQTT sees ${topic}/1/temp` }),
      field("keys", "Keys", { value: last.keys, spellcheck: "false", autocapitalize: "off", hint: "to find it by later; a blank between two" }),
      field("properties", "Headers", { rows: 2, value: last.properties, hint: "name=value, one a line",
        checks: (typed) => (typed.split("\n").every((line) => !line.trim() || /^\s*[^=\s]+\s*=/.test(line)) ? null : "each line is name=value") }),
    ],
    action: "Publish",
    submit: (typed) => {
      Object.assign(last, typed);
      return call(path`/api/v1/topics/${topic}/messages`, { method: "POST", body: {
        body: typed.body, tag: typed.tag.trim(), keys: typed.keys.split(/\s+/).filter(Boolean), properties: properties(typed.properties),
      } });
    },
  });
  if (sent) say(`Stored in the log: queue ${sent.broker}/${sent.queue_id}, offset ${sent.offset}.`);
  return sent;
}
