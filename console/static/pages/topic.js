// One topic: its rate now, its queues, its messages, and what can be done to it.

import { may } from "../account.js";
import { go } from "../address.js";
import { call, path } from "../api.js";
import { empty, every, facts, h, head, notice, say, state, tell } from "../dom.js";
import { bytes, duration, moment, number, short } from "../format.js";
import { messageList } from "../message_list.js";
import { publish } from "../publish.js";
import { RangeChart, rate } from "../range_chart.js";
import { Rates } from "../rates.js";
import { putRows, table } from "../rows.js";
import { deleteTopic, editTopic, pauseTopic, resizeTopic, stepTo } from "../topic_dialogs.js";

const LOOK_MS = 1000, READERS_MS = 5000;

const QUEUES = [
  { title: "Queue", cell: (queue) => `${queue.broker}/${queue.queue_id}` },
  { title: "State", cell: (queue) => (queue.hidden_from_consumers ? state("hidden from all", "off") : queue.hidden_from_producers ? state("hidden from producers", "warn") : state("open", "good")) },
  { title: "First", class: "n", cell: (queue) => number(queue.first_offset) },
  { title: "End", class: "n", cell: (queue) => number(queue.end_offset) },
  { title: "Messages", class: "n wide", cell: (queue) => number(queue.end_offset - queue.first_offset) },
];

const READERS = [
  { title: "Kind", cell: (row) => h("span.tag", {}, row.kind) },
  { title: "Group", cell: (row) => (row.group && !row.group.startsWith("$") ? h("a", { href: `/groups/${encodeURIComponent(row.group)}` }, row.group) : row.group || "–") },
  { title: "Client", cell: (row) => row.client_id || "–" },
  { title: "Broker", class: "wide", cell: (row) => row.broker },
  { title: "Address", class: "wide", cell: (row) => row.address },
  { title: "Access key", class: "wide", cell: (row) => row.principal || "–" },
  { title: "Since", class: "wide", cell: (row) => moment(row.since_ms) },
  { title: "Last read", cell: (row) => moment(row.seen_ms) },
];

export async function show(place) {
  const { main, args: [name], signal } = place, rates = new Rates();
  let topic = null, wanted = null, leaving = false;
  const read = async () => { topic = await call(path`/api/v1/topics/${name}`, { signal }); };
  await read();

  const wrong = notice({ role: "alert" }), removal = notice({ id: "removal" });
  const about = h("div", { id: "about" }), badges = h("span", { id: "topic-state" });
  const legend = h("ul.legend"), box = h("div.chart.low", { id: "rate-chart", role: "img", "aria-label": "Line chart of messages per second, in and out, of the last five minutes" });
  const chart = new RangeChart(box, legend, signal, rate);
  const queues = table("Queues", QUEUES), messages = messageList(place, name);
  const acts = h("div.actions"), readers = table("Readers", READERS), noReaders = empty("Nobody reads it."), readersNote = notice({ id: "readers-note" });
  const goOn = h("button", { type: "button", hidden: true, onclick: async () => { stepped(await stepTo(name, topic.removal.to)); await look(); } }, "Go on");
  const act = (word, work, classes = "button") => h(classes, { type: "button", onclick: async () => { const done = await work(); if (done) await look(); } }, word);

  function draw() {
    const log = topic.kind !== "table";
    acts.replaceChildren(...[
      may("operator") && log && act("Publish", () => publish(name).then((sent) => { if (sent) messages.again(); return sent; }), "button.primary"),
      may("operator") && act("Queues", async () => { const step = await resizeTopic(topic); if (step) stepped(step); return step; }),
      may("operator") && act("Settings", () => editTopic(topic)),
      may("operator") && act(topic.is_paused ? "Resume" : "Pause", () => pauseTopic(name, !topic.is_paused)),
      may("admin") && act("Delete", remove, "button.danger"),
    ].filter(Boolean));
  }

  // Nobody asks for what is being deleted: the answer would be an error on a page that is left.
  async function remove() {
    leaving = true;
    leaving = await deleteTopic(name, topic.messages_stored);
    if (leaving) go("/topics");
  }

  function put() {
    badges.replaceChildren(topic.is_paused ? state("paused", "warn", "It takes messages and delivers none.") : state("serving", "good"), " ", ...[topic.kind !== "log" && topic.kind, topic.order && "order"].filter(Boolean).map((word) => h("span.tag", {}, word)));
    about.replaceChildren(facts({
      "In, per second": rates.newest ? rate(rates.newest[0]) : "–", "Out, per second": rates.newest ? rate(rates.newest[1]) : "–",
      Stored: short(topic.messages_stored), In: short(topic.messages_in), "Data in": bytes(topic.bytes_in), Out: short(topic.messages_out), Replayed: short(topic.messages_replayed),
      Retention: topic.retention_ms ? duration(topic.retention_ms) : "as the log", "First group": topic.first_group === "beginning" ? `from the beginning: ${topic.first_reader || "none yet"}` : "as every other", "At": topic.spread === "all" ? "all brokers, also those that join" : "the brokers it was created at", "Clients may": { rw: "read, write", r: "read", w: "write" }[topic.perm] ?? "nothing",
    }));
    const { x, line } = rates.columns();
    chart.draw({ x, lines: [{ label: "in", values: line(0) }, { label: "out", values: line(1) }] });
    putRows(queues.tBodies[0], QUEUES, topic.queues, (queue) => `${queue.broker}/${queue.queue_id}`);
    tell(removal, wanted ? `Shrinking to ${wanted.queues}: ${wanted.waits_for ? `it waits, ${wanted.waits_for}` : "the next step comes"}. Until the last step, more queues take it back.`
      : topic.removal && `Shrinking to ${topic.removal.to} stands still.`);
    goOn.hidden = !(topic.removal && !wanted && may("operator"));
  }

  // Fewer queues come in steps, each when nobody needs the queues any more: asked again until all are done.
  function stepped(step) {
    wanted = step.done ? null : step;
    if (step.done) say(`${name} has ${number(step.queues)} ${step.queues === 1 ? "queue" : "queues"} on each broker.`);
  }

  async function look() {
    if (leaving) return;
    try {
      if (wanted) stepped(await stepTo(name, wanted.queues));
      const paused = topic.is_paused;
      await read();
      rates.take(Date.now() / 1000, [topic.messages_in, topic.messages_out]);
      tell(wrong, topic.notice);
      put();
      if (paused !== topic.is_paused) draw();
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }

  async function lookAtReaders() {
    if (leaving) return;
    try {
      const found = await call(path`/api/v1/topics/${name}/readers`, { signal });
      putRows(readers.tBodies[0], READERS, found.readers, (row) => `${row.broker} ${row.address} ${row.kind} ${row.group} ${row.since_ms}`);
      const none = found.readers.length === 0;
      [readers.hidden, noReaders.hidden] = [none, !none];
      tell(readersNote, found.notice ?? (found.total > found.readers.length && `${number(found.total)} read it; the first are shown.`));
    } catch (error) {
      if (error.name !== "AbortError") tell(readersNote, error);
    }
  }

  const title = head(name, { crumb: ["Topics", "/topics"] });
  title.firstChild.append(badges);
  title.lastChild.replaceWith(acts);
  main.append(title, wrong, about,
    h("section.section", { "aria-labelledby": "rate-title" }, h("div.card", {}, h("div.chart-head", {}, h("h2", { id: "rate-title" }, "Messages per second"), legend), box)),
    h("section.section", { "aria-labelledby": "messages-title" }, h("h2", { id: "messages-title" }, "Messages"), messages.element),
    h("section.section", { "aria-labelledby": "queues-title" }, h("h2", { id: "queues-title" }, "Queues"), removal, goOn,
      queues),
    h("section.section", { id: "readers", "aria-labelledby": "readers-title" }, h("h2", { id: "readers-title" }, "Readers"), readersNote, noReaders, readers));
  draw();
  rates.take(Date.now() / 1000, [topic.messages_in, topic.messages_out]);
  put();
  every(LOOK_MS, signal, look);
  lookAtReaders();
  every(READERS_MS, signal, lookAtReaders);
}
