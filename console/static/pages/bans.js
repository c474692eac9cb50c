// Bans: those that people make for every gateway, and those that a gateway makes of clients that connect too often.

import { may } from "../account.js";
import { call, path } from "../api.js";
import { ask } from "../dialog.js";
import { empty, every, h, head, notice, say, tell } from "../dom.js";
import { field } from "../fields.js";
import { duration, moment, number, parseDuration } from "../format.js";
import { putRows, table } from "../rows.js";

const LOOK_MS = 5000;
const KINDS = [["client_id", "client id"], ["user", "user"], ["address", "address or network"], ["pattern", "client ids by pattern"]];
const kind = (word) => KINDS.find(([name]) => name === word)?.[1] ?? word;

export async function show({ main, signal }) {
  let found = await call("/api/v1/bans", { signal });
  const wrong = notice({ role: "alert" });
  const lift = (ban) => h("button", { type: "button", "aria-label": `Lift the ban of ${ban.value}`, onclick: async () => {
    const done = await ask({
      title: `Let ${ban.value} in again?`, body: "The ban is lifted at every gateway.", action: "Lift the ban",
      submit: () => call(path`/api/v1/bans/${ban.kind}/${ban.value}`, { method: "DELETE" }),
    });
    if (done) { say(done.notice ?? `${ban.value} is banned no longer.`); await look(); }
  } }, "Lift");
  const columns = [
    { title: "What", cell: (row) => kind(row.kind) },
    { title: "Value", cell: (row) => row.value },
    { title: "Until", cell: (row) => (row.until_ms === null ? "for ever" : moment(row.until_ms)) },
    { title: "By", class: "wide", cell: (row) => row.by || "–" },
    { title: "Since", class: "wide", cell: (row) => moment(row.made_ms) },
    { title: "Why", class: "wide", cell: (row) => row.reason || "–" },
    ...(may("operator") ? [{ title: "", name: "What to do", cell: lift }] : []),
  ];
  const flappingColumns = [
    { title: "Client", cell: (row) => row.principal },
    { title: "Address", cell: (row) => row.address || "–" },
    { title: "Gateway", cell: (row) => row.gateway },
    { title: "Connects", class: "n wide", cell: (row) => number(row.connects) },
    { title: "Ends in", class: "n", cell: (row) => duration(row.left_s * 1000) },
  ];
  const made = table("Bans", columns), none = empty("Nobody is banned.", "Who is banned is refused by every gateway, and disconnected.");
  const flapping = table("Bans that gateways have made", flappingColumns), noFlapping = empty("No gateway has banned a client that connects too often.");
  const add = h("button.primary", { type: "button", onclick: async () => {
    const done = await ask({
      title: "Ban clients",
      body: "Every gateway refuses them from now on, and disconnects those that are connected.",
      fields: [
        field("kind", "What", { options: KINDS }),
        field("value", "Value", { required: true, hint: "A pattern has * for any text and ? for a character; a network is 10.0.0.0/8." }),
        field("length", "For how long", { hint: "15m, 2h, 30d; empty is for ever.", checks: (text) => (text.trim() && !parseDuration(text.trim()) ? "write it as 15m, 2h or 30d" : null) }),
        field("reason", "Why", { hint: "For whoever looks at it later; clients are not told." }),
      ],
      action: "Ban", danger: true,
      submit: ({ kind: what, value, length, reason }) => call("/api/v1/bans", { method: "POST", body: { kind: what, value: value.trim(), reason, seconds: length.trim() ? Math.ceil(parseDuration(length.trim()) / 1000) : 0 } }),
    });
    if (done) { say(`${done.value} is banned.`); await look(); }
  } }, "Ban clients");

  function put() {
    putRows(made.tBodies[0], columns, found.bans, (row) => `${row.kind} ${row.value}`);
    made.hidden = !(none.hidden = found.bans.length > 0);
    putRows(flapping.tBodies[0], flappingColumns, found.flapping, (row) => `${row.gateway} ${row.principal} ${row.address}`);
    flapping.hidden = !(noFlapping.hidden = found.flapping.length > 0);
    tell(wrong, found.notice);
  }

  async function look() {
    try {
      found = await call("/api/v1/bans", { signal });
      put();
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }

  main.append(head("Bans", { lead: "Who may not connect, at any gateway.", actions: may("operator") ? [add] : [] }), wrong, made, none,
    h("section.section", { "aria-labelledby": "flapping-title" }, h("h2", { id: "flapping-title" }, "Made by gateways"),
      h("p.muted", {}, "Of clients that connect too often (gateway.flapping_connects_max), at one gateway; holdmq ban clear lifts them there."), flapping, noFlapping));
  put();
  every(LOOK_MS, signal, look);
}
