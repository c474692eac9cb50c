// Alarms of the brokers: what is raised, and what was.

import { call } from "../api.js";
import { empty, every, h, head, notice, state, tell } from "../dom.js";
import { duration, moment, number } from "../format.js";
import { putRows, table } from "../rows.js";

const LOOK_MS = 3000;
const value = (row, n) => (row.kind === "backlog_age" ? `${number(n)}\u2009s` : number(n));
const ACTIVE = [
  { title: "Alarm", cell: (row) => state(row.kind.replaceAll("_", " "), "bad") },
  { title: "What", cell: (row) => row.text },
  { title: "Broker", class: "wide", cell: (row) => row.broker },
  { title: "Now", class: "n wide", cell: (row) => value(row, row.value) },
  { title: "Peak", class: "n wide", cell: (row) => value(row, row.peak) },
  { title: "Since", cell: (row) => moment(row.since_ms) },
];
const PAST = [
  { title: "Alarm", cell: (row) => state(row.kind.replaceAll("_", " "), "off") },
  { title: "What", cell: (row) => row.text },
  { title: "Broker", class: "wide", cell: (row) => row.broker },
  { title: "Peak", class: "n wide", cell: (row) => value(row, row.peak) },
  { title: "From", class: "wide", cell: (row) => moment(row.since_ms) },
  { title: "Lasted", class: "n", cell: (row) => duration(Math.max(0, row.ended_ms - row.since_ms)) },
];

export function show({ main, signal }) {
  const wrong = notice({ role: "alert" });
  const active = table("Raised now", ACTIVE, { hidden: true }), past = table("Over", PAST, { hidden: true });
  const calm = empty("No alarm is raised.", "Which backlogs raise one, and who is told by mail or webhook, is in the section ", h("code", {}, "[alarms]"), " of the configuration.");
  const none = empty("No alarm has been raised since the brokers started.");
  calm.hidden = none.hidden = true;
  main.append(head("Alarms"), wrong,
    h("section", { "aria-labelledby": "active-title" }, h("h2", { id: "active-title" }, "Raised now"), active, calm),
    h("section.section", { "aria-labelledby": "past-title" }, h("h2", { id: "past-title" }, "Over"), past, none));
  every(LOOK_MS, signal, async () => {
    try {
      const answer = await call("/api/v1/alarms", { signal }), key = (row) => `${row.broker} ${row.kind} ${row.name} ${row.since_ms}`;
      tell(wrong, answer.notice);
      putRows(active.tBodies[0], ACTIVE, answer.active, key);
      active.hidden = !(calm.hidden = answer.active.length > 0);
      putRows(past.tBodies[0], PAST, answer.history, key);
      past.hidden = !(none.hidden = answer.history.length > 0);
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  });
}
