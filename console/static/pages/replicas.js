// The replicas of each broker: who leads, who may lead next, how far each is, and the lead handed over.

import { may } from "../account.js";
import { call, path } from "../api.js";
import { ask } from "../dialog.js";
import { empty, every, h, head, notice, say, state, tell } from "../dom.js";
import { bytes, duration, number } from "../format.js";
import { putRows, table } from "../rows.js";

const LOOK_MS = 2000;
const LEVELS = { leader: "good", "in sync": "good", learner: "warn", missing: "bad" };
const known = (value, show) => (value === null ? "–" : show(value));

function role(row) {
  if (row.role === "leader" && !row.serves) return state("leader, no lease", "bad", "Its lease has run out: it hands nothing out.");
  return state(row.role, LEVELS[row.role], row.reason || row.does);
}

export function show({ main, signal }) {
  const wrong = notice({ role: "alert" }), shards = h("div"), places = new Map();
  const none = empty("No broker has registered yet.", "Start one with ", h("code", {}, "holdmq broker"));
  none.hidden = true;

  const switchTo = (broker, leader, to) => h("button", { type: "button", "aria-label": `Switch ${broker} to ${to}`, onclick: async () => {
    const done = await ask({
      title: `${to} is to lead ${broker}?`,
      body: `${leader} takes no more messages, waits until ${to} has all of them, and gives it the lead. Clients see a pause of a second at most; nothing is lost.`,
      action: "Switch",
      submit: () => call(`${path`/api/v1/replicas/${broker}`}/switch`, { method: "POST", body: { to } }),
    });
    if (done) { say(`${done.leader} leads ${broker}.`); await look(); }
  } }, "Switch");

  const columns = [
    { title: "Replica", cell: (row) => row.replica },
    { title: "Role", cell: role },
    { title: "Epoch", class: "n wide", cell: (row) => known(row.epoch, number) },
    { title: "Behind", class: "n", cell: (row) => known(row.behind_ms, duration) },
    { title: "Lacks", class: "n wide", cell: (row) => known(row.behind_bytes, bytes) },
    { title: "Confirmed", class: "n wide", cell: (row) => known(row.confirmed, number) },
    { title: "Lease", class: "n wide", cell: (row) => known(row.lease_ms, duration) },
    { title: "Address", class: "wide", cell: (row) => row.address },
    { title: "Lead", class: "n", cell: (row) => (row.may_lead && may("operator") ? switchTo(row.broker, row.leader, row.replica) : "") },
  ];

  function place(broker) {
    if (!places.has(broker)) {
      const id = `shard-${places.size}`, badge = h("span"), about = h("span.muted.small"), rows = table(`Replicas of ${broker}`, columns), why = h("p.muted");
      const element = h("section.section", { "aria-labelledby": id }, h("div.tools", {}, h("h2", { id }, broker), badge, about), rows, why);
      places.set(broker, { element, badge, about, rows, why });
    }
    return places.get(broker);
  }

  function put(shard) {
    const { element, badge, about, rows, why } = place(shard.broker), isOne = shard.copies === 1;
    const word = isOne ? "one copy" : shard.ok ? `${shard.copies} copies` : shard.leader ? "not all is well" : "nobody leads";
    if (badge.textContent !== word) badge.replaceChildren(state(word, isOne ? "off" : shard.ok ? "good" : shard.leader ? "warn" : "bad"));
    about.textContent = shard.epoch ? `epoch ${number(shard.epoch)}` : "";
    putRows(rows.tBodies[0], columns, shard.replicas.map((row) => ({ ...row, broker: shard.broker, leader: shard.leader })), (row) => row.replica);
    rows.hidden = isOne;
    const missing = shard.replicas.filter((row) => row.reason).map((row) => `${row.replica}: ${row.reason}`);
    why.textContent = isOne ? "It has one copy of its log: what it stores is lost with its disk." : missing.join("; ");
    why.hidden = !why.textContent;
    return element;
  }

  async function look() {
    // Rows that change under a question would take away what it gives the focus back to.
    if (document.querySelector("dialog")) return;
    try {
      const answer = await call("/api/v1/replicas", { signal });
      tell(wrong, answer.notice);
      const seen = new Set(answer.shards.map((shard) => shard.broker));
      for (const [broker, { element }] of places) {
        if (!seen.has(broker)) { element.remove(); places.delete(broker); }
      }
      answer.shards.map(put).forEach((element, i) => {
        if (shards.children[i] !== element) shards.insertBefore(element, shards.children[i] ?? null);
      });
      none.hidden = answer.shards.length > 0;
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }

  main.append(
    head("Replicas", { lead: "Each broker's copies: one leads and serves clients, those in sync have all that was acknowledged and may lead next, a learner catches up." }),
    wrong, none, shards,
    h("p.muted.small", {}, "A replica that may lack messages is made to lead by the command alone: ", h("code", {}, "holdmq replica promote --accept-loss"), ", which says what may be lost."));
  every(LOOK_MS, signal, look);
}
