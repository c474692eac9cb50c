// What can be done to a topic, each as a dialog.

import { call, path, Refusal } from "./api.js";
import { ask } from "./dialog.js";
import { h, say } from "./dom.js";
import { field } from "./fields.js";
import { number, parseDuration, typedDuration } from "./format.js";

const PERMS = [["rw", "read and write"], ["r", "read only"], ["w", "write only"], ["none", "nothing"]];

const retention = (ms) => field("retention", "Retention", {
  value: ms ? typedDuration(ms) : "", placeholder: "as the log",
  hint: "90s, 30m, 12h, 3d; nothing: as long as the log",
  checks: (typed) => (!typed.trim() || parseDuration(typed) !== null ? null : "a time is 90s, 30m, 12h or 3d"),
});
const perm = (value) => field("perm", "Clients may", { options: PERMS, value });
const order = (value) => field("order", "Keep keys in order, also while queues are added", { type: "checkbox", value });
const firstGroup = (value) => field("first_group", "The first group that ever reads it begins", {
  options: [["own", "as every other: at the end, or where its consumers say"], ["beginning", "with all that is there, unless its consumers say where"]], value,
});
const SPREADS = [["all", "all brokers, also those that join later"], ["fixed", "the brokers of today alone"]];
const spread = (value, options = SPREADS) => field("spread", "Who has it", { options, value, hint: "Ordered topics, tables and temporary ones are always at the brokers of today alone." });
const inMs = (typed) => (typed.trim() ? parseDuration(typed) : 0);

export function createTopic() {
  return ask({
    title: "Create a topic",
    fields: [
      field("topic", "Name", { required: true, maxlength: 127, spellcheck: "false", autocapitalize: "off", hint: "letters, digits, _ and -; MQTT’s first level is the topic",
        checks: (typed) => (/^[A-Za-z0-9_-]+(#tmp)?$/.test(typed) ? null : "letters, digits, _ and - only") }),
      field("queues", "Queues on each broker", { type: "number", min: 1, max: 1024, hint: "nothing: as the brokers’ default" }),
      field("kind", "Kind", { options: [["log", "log: messages"], ["table", "table: the newest value by key"], ["temporary", "temporary: in memory only"]], hint: "It stays for good." }),
      perm("rw"), retention(0),
      field("key_levels", "Levels of a tag that filters select quickly by", { type: "number", min: 1, max: 8, value: 1, hint: "It stays for good." }),
      firstGroup("own"), spread("", [["", "as its kind does: all brokers, or those of today"], ...SPREADS]), order(false),
    ],
    action: "Create",
    submit: async ({ retention: typed, ...values }) => {
      const body = { ...values, retention_ms: inMs(typed) };
      if (!body.queues) delete body.queues;
      if (!body.spread) delete body.spread;
      return call("/api/v1/topics", { method: "POST", body });
    },
  });
}

export function editTopic(topic) {
  return ask({
    title: `Settings of ${topic.topic}`,
    fields: [perm(topic.perm), retention(topic.retention_ms), firstGroup(topic.first_group), spread(topic.spread), order(topic.order)],
    submit: ({ retention: typed, ...values }) => {
      const body = { ...values, retention_ms: inMs(typed) };
      // A topic that becomes ordered is fixed by itself, and what stays as it is need not be said.
      if (body.order || body.spread === topic.spread) delete body.spread;
      return call(path`/api/v1/topics/${topic.topic}`, { method: "PATCH", body });
    },
  });
}

export function resizeTopic(topic) {
  const now = Math.max(...topic.broker_rows.map((row) => row.write_queues));
  return ask({
    title: `Queues of ${topic.topic}`,
    body: h("p.muted", {}, `It has ${number(now)} on each broker. More come at once; fewer go in three steps, each when nobody needs the queues any more: nothing is lost.`),
    fields: [field("queues", "Queues on each broker", { type: "number", min: 1, max: 1024, value: now, required: true })],
    action: "Change",
    submit: ({ queues }) => stepTo(topic.topic, queues),
  });
}

// One step towards so many queues: { queues, done, step, waits_for }; to be asked again until it is done.
export async function stepTo(topic, queues) {
  return { queues, ...await call(path`/api/v1/topics/${topic}/queues`, { method: "PUT", body: { queues } }) };
}

// Deletes in the steps that lose nothing, as far as they go now.
async function deleteSafely(topic) {
  for (;;) {
    const { done, waits_for: reason } = await call(path`/api/v1/topics/${topic}`, { method: "DELETE" });
    if (done) return true;
    if (reason) throw new Refusal(`not deleted yet: ${reason}`, { hint: "Nothing is sent to it any more. Ask again when that is over, or delete it at once." });
  }
}

export async function pauseTopic(topic, pause) {
  const body = pause ? "Its messages are taken and kept, and nobody gets them until it is resumed." : "Everybody gets what was kept, then what comes.";
  const done = await ask({ title: `${pause ? "Pause" : "Resume"} ${topic}?`, body, action: pause ? "Pause" : "Resume",
    submit: () => call(path`/api/v1/topics/${topic}/${pause ? "pause" : "resume"}`, { method: "POST" }).then(() => true) });
  if (done) say(`${topic} is ${pause ? "paused" : "resumed"}.`);
  return done;
}

export async function deleteTopic(topic, messages) {
  const done = await ask({
    title: `Delete ${topic}?`,
    body: h("p", {}, `The topic and ${messages === undefined ? "all its messages" : messages === 1 ? "its message" : `its ${number(messages)} messages`} go for good, on every broker.`),
    fields: [field("force", "At once: what groups have not consumed is lost", { type: "checkbox", hint: "Otherwise a group that lags is named, and nothing is deleted before it has consumed." })],
    typed: topic, danger: true, action: "Delete",
    submit: ({ force }) => (force ? call(`${path`/api/v1/topics/${topic}`}?force=1`, { method: "DELETE" }).then(() => true) : deleteSafely(topic)),
  });
  if (done) say(`${topic} is deleted.`);
  return done;
}
