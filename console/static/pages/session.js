// One MQTT session: what it subscribes to, where it is, and its end.

import { may } from "../account.js";
import { go } from "../address.js";
import { call, path } from "../api.js";
import { ask } from "../dialog.js";
import { empty, every, facts, h, head, notice, say, state, tell } from "../dom.js";
import { duration, moment, number } from "../format.js";
import { putRows, table } from "../rows.js";

const LOOK_MS = 3000;
const FILTERS = [
  { title: "Filter", cell: (row) => row.filter },
  { title: "QoS", class: "n", cell: (row) => String(row.qos) },
  { title: "Options", class: "wide", cell: (row) => [row.no_local && "no local", row.retain_as_published && "retain as published"].filter(Boolean).join(", ") || "–" },
];
export async function show({ main, args: [id], signal }) {
  let session = null;
  const at = path`/api/v1/sessions/${id}`, read = async () => { session = await call(at, { signal }); };
  await read();
  const wrong = notice({ role: "alert" }), about = h("div"), badge = h("span", { id: "session-state" });
  const filters = table("Subscriptions", FILTERS), none = empty("It subscribes to nothing.");
  const kick = h("button", { type: "button", onclick: async () => {
    const done = await ask({
      title: `Disconnect ${id}?`, body: "Its connection is closed. Its session stays: it may come back, and gets what it missed.", action: "Disconnect", danger: true,
      submit: () => call(`${at}/disconnect`, { method: "POST" }).then((answer) => answer ?? {}),
    });
    if (done) { say(`${id} is disconnected.`); await look(); }
  } }, "Disconnect");
  const drop = h("button.danger", { type: "button", onclick: async () => {
    const done = await ask({
      title: `Forget ${id}?`, body: "It is disconnected, and its session goes for good with all that waits for it.", typed: id, danger: true, action: "Forget",
      submit: () => call(at, { method: "DELETE" }).then(() => true),
    });
    if (done) { say(`The session of ${id} is gone.`); go("/sessions"); }
  } }, "Forget");

  function put() {
    badge.replaceChildren(session.online ? state("connected", "good") : state("away", "off"));
    kick.disabled = !session.online;
    about.replaceChildren(facts({
      [session.online ? "Gateway" : "Away since"]: session.online ? session.gateway : moment(session.ended_ms),
      User: session.principal || "–", "Made": moment(session.created_ms), "Expires after": duration(session.expiry_s * 1000), "Under way": number(session.waiting), Owner: session.broker,
    }, "facts.plain"));
    putRows(filters.tBodies[0], FILTERS, session.subscriptions, (row) => row.filter);
    filters.hidden = !(none.hidden = session.subscriptions.length > 0);
  }

  async function look() {
    try {
      await read();
      tell(wrong, null);
      put();
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }

  const title = head(id, { crumb: ["Sessions", "/sessions"], actions: may("operator") ? [kick, drop] : [] });
  title.firstChild.append(badge);
  main.append(title, wrong, about,
    h("section.section", { "aria-labelledby": "filters-title" }, h("h2", { id: "filters-title" }, "Subscriptions"), filters, none));
  put();
  every(LOOK_MS, signal, look);
}
