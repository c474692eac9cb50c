// One consumer group: how far it is, who its members are, and where it goes on.

import { may } from "../account.js";
import { go } from "../address.js";
import { call, path } from "../api.js";
import { ask } from "../dialog.js";
import { empty, every, facts, h, head, notice, say, state, tell } from "../dom.js";
import { field } from "../fields.js";
import { bytes, duration, moment, number, short } from "../format.js";
import { putRows, table } from "../rows.js";

const LOOK_MS = 2000;

const offset = (n) => (n < 0 ? "–" : number(n));
const OFFSETS = [
  { title: "Topic", cell: (row) => h("a", { href: `/topics/${encodeURIComponent(row.topic)}` }, row.topic) },
  { title: "Queue", cell: (row) => `${row.broker}/${row.queue_id}` },
  { title: "Offset", class: "n wide", cell: (row) => offset(row.offset) },
  { title: "End", class: "n wide", cell: (row) => number(row.end_offset) },
  { title: "Waiting", class: "n", cell: (row) => number(row.lag) },
  { title: "Oldest", class: "n", cell: (row) => (row.lag ? duration(row.lag_ms) : "–") },
];
const CLIENTS = [
  { title: "Client", cell: (row) => row.client_id },
  { title: "Broker", cell: (row) => row.broker },
  { title: "Queues", class: "n", cell: (row) => number(row.queues) },
  { title: "Topics", class: "wide", cell: (row) => (row.topics ?? []).join(", ") },
  { title: "Address", class: "wide", cell: (row) => row.address },
  { title: "Room", class: "wide", cell: (row) => row.room || "–" },
  { title: "Since", class: "wide", cell: (row) => moment(row.joined_ms) },
];
const TRAFFIC = [
  { title: "Topic", cell: (row) => row.topic },
  { title: "Out, per second", class: "n", cell: (row) => row.messages_out_per_s.toFixed(1) },
  { title: "Data out, per second", class: "n wide", cell: (row) => bytes(row.bytes_out_per_s) },
  { title: "Delivered again", class: "n", cell: (row) => number(row.requeued) },
  { title: "Timed out", class: "n wide", cell: (row) => number(row.timed_out) },
  { title: "Given back", class: "n wide", cell: (row) => number(row.given_back) },
];
const MOVES = [
  { title: "Queue", cell: (row) => `${row.broker}/${row.queue_id}` },
  { title: "Before", class: "n", cell: (row) => offset(row.before) },
  { title: "After", class: "n", cell: (row) => number(row.after) },
];

export async function show({ main, args: [name], signal }) {
  let group = null;
  const at = path`/api/v1/groups/${name}`, read = async () => { group = await call(at, { signal }); };
  await read();
  const wrong = notice({ role: "alert" }), about = h("div"), acts = h("div.actions"), badge = h("span", { id: "group-state" });
  const offsets = table("Offsets and backlog", OFFSETS), noOffsets = empty("It has no offsets yet.", "They come with its first member that consumes, or with a reset.");
  const traffic = table("Traffic", TRAFFIC), noTraffic = empty("It took nothing since the brokers' starts.");
  const clients = table("Members", CLIENTS), noClients = empty("Nobody consumes.", "Start a consumer of this group: ", h("code", {}, `Consumer(registries, "${name}", handle, ["topic"])`));

  const act = (word, work, classes = "button") => h(classes, { type: "button", onclick: async () => { if (await work()) await look(); } }, word);
  const pause = (on) => ask({
    title: `${on ? "Pause" : "Resume"} ${name}?`, action: on ? "Pause" : "Resume",
    body: on ? "It keeps its members and offsets, and gets nothing until it is resumed." : "It goes on where it stopped.",
    submit: () => call(`${at}/${on ? "pause" : "resume"}`, { method: "POST" }).then((answer) => { say(`${name} is ${on ? "paused" : "resumed"}.`); return answer ?? true; }),
  });
  const remove = async () => {
    const done = await ask({
      title: `Delete ${name}?`, body: "Its settings, its offsets and what waits for its next try go for good. Its dead letters stay until they are purged. It must have no members.",
      typed: name, danger: true, action: "Delete", submit: () => call(at, { method: "DELETE" }).then(() => true),
    });
    if (done) { say(`${name} is deleted.`); go("/groups"); }
  };

  function draw() {
    acts.replaceChildren(...[
      may("operator") && act("Reset", reset, "button.primary"),
      may("operator") && act(group.is_paused ? "Resume" : "Pause", () => pause(!group.is_paused)),
      may("admin") && act("Delete", remove, "button.danger"),
    ].filter(Boolean));
  }

  // First where to, then what that means for each queue, then the deed.
  async function reset() {
    const topics = [...new Set(group.progress.map((row) => row.topic))].filter((topic) => !topic.startsWith("%"));
    const topic = topics.length
      ? field("topic", "Topic", { options: topics.map((word) => [word, word]), required: true })
      : field("topic", "Topic", { required: true, hint: "the group has no offsets yet: it gets its first ones" });
    const to = field("to", "To", { options: [["earliest", "the oldest message"], ["latest", "the end: only what comes"], ["time", "a time"], ["offset", "an offset"]] });
    const time = field("time", "Time", { type: "datetime-local", step: "1", value: local(Date.now() - 3_600_000) });
    const place = field("offset", "Offset", { type: "number", min: 0, value: 0 });
    const shape = () => { time.element.hidden = to.read() !== "time"; place.element.hidden = to.read() !== "offset"; };
    to.input.addEventListener("change", shape);
    shape();
    const order = ({ topic: of, to: where, time: when, offset: n }) => ({ topic: of, to: where, ...(where === "time" ? { value: Date.parse(when) } : where === "offset" ? { value: n } : {}) });
    const planned = await ask({
      title: `Reset ${name}`, body: h("p.muted", {}, "Nothing happens yet: first you see what it means for each queue."), fields: [topic, to, time, place], action: "Preview",
      submit: async (values) => ({ order: order(values), ...await call(`${at}/reset`, { method: "POST", body: { ...order(values), dry_run: true } }) }),
    });
    if (!planned) return null;
    const change = planned.moved.reduce((sum, row) => sum + (row.after - Math.max(0, row.before)), 0);
    const moves = table("What moves", MOVES);
    putRows(moves.tBodies[0], MOVES, planned.moved, (row) => `${row.broker}/${row.queue_id}`);
    return ask({
      title: `Reset ${name} in ${planned.order.topic}?`,
      body: [
        h("p", {}, change < 0 ? `${number(-change)} messages are delivered again.` : change > 0 ? `${number(change)} messages are passed over.` : "No offset moves."),
        h("div.scroll", { tabindex: "0", role: "region", "aria-label": "What moves" }, moves),
      ],
      action: "Reset", danger: true,
      submit: () => call(`${at}/reset`, { method: "POST", body: { ...planned.order, dry_run: false } }).then((answer) => { say(`${name} goes on at ${{ earliest: "the oldest message", latest: "the end" }[planned.order.to] ?? `the chosen ${planned.order.to}`}.`); return answer; }),
    });
  }

  function put() {
    badge.replaceChildren(group.is_paused ? state("paused", "warn") : group.members ? state("consuming", "good") : state("no members", "off"));
    about.replaceChildren(facts({
      Waiting: short(group.lag), Oldest: group.age_ms ? duration(group.age_ms) : "–", Members: number(group.members), Mode: group.mode || "–",
      Retries: number(group.retry_max_times), "Dead letters": h("a", { href: `/dead-letters/${encodeURIComponent(name)}` }, "see them"),
    }));
    putRows(offsets.tBodies[0], OFFSETS, group.progress, (row) => `${row.topic}/${row.broker}/${row.queue_id}`);
    putRows(clients.tBodies[0], CLIENTS, group.clients, (row) => `${row.broker}/${row.client_id}`);
    putRows(traffic.tBodies[0], TRAFFIC, group.traffic, (row) => row.topic);
    traffic.hidden = !(noTraffic.hidden = group.traffic.length > 0);
    offsets.hidden = !(noOffsets.hidden = group.progress.length > 0);
    clients.hidden = !(noClients.hidden = group.clients.length > 0);
  }

  async function look() {
    try {
      const before = JSON.stringify(group), paused = group.is_paused;
      await read();
      tell(wrong, group.notice);
      if (JSON.stringify(group) !== before) put();
      if (paused !== group.is_paused) draw();
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }

  const title = head(name, { crumb: ["Groups", "/groups"] });
  title.firstChild.append(badge);
  title.lastChild.replaceWith(acts);
  main.append(title, wrong, about,
    h("section.section", { "aria-labelledby": "lag-title" }, h("h2", { id: "lag-title" }, "Where it is"), offsets, noOffsets),
    h("section.section", { "aria-labelledby": "clients-title" }, h("h2", { id: "clients-title" }, "Members"), clients, noClients),
    h("section.section", { "aria-labelledby": "traffic-title" }, h("h2", { id: "traffic-title" }, "What it takes"), traffic, noTraffic));
  draw();
  put();
  every(LOOK_MS, signal, look);
}

// A moment as a datetime-local field has it.
function local(ms) {
  const at = new Date(ms);
  return new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
