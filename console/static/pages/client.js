// One connected client: where it is, what it subscribes to, what it sends and is sent now.

import { may } from "../account.js";
import { call, path } from "../api.js";
import { ask } from "../dialog.js";
import { empty, every, facts, h, head, notice, say, state, tell } from "../dom.js";
import { bytes, duration, moment, number } from "../format.js";
import { putRows, table } from "../rows.js";
import { place } from "./clients.js";

const LOOK_MS = 2000;
const FILTERS = [
  { title: "Filter", cell: (row) => row.filter },
  { title: "QoS", class: "n", cell: (row) => String(row.qos) },
];
const COUNTED = ["messages_in", "messages_out", "bytes_in", "bytes_out"];

export async function show({ main, args: [id], signal }) {
  const at = path`/api/v1/clients/${id}`;
  let client = await call(at, { signal }), before = null, readAt = performance.now();
  const wrong = notice({ role: "alert" }), about = h("div"), badge = h("span", { id: "client-state" });
  const filters = table("Subscriptions", FILTERS), none = empty("It subscribes to nothing.");
  const kick = h("button", { type: "button", onclick: async () => {
    const done = await ask({
      title: `Disconnect ${id}?`, body: "Its connection is closed. Its session stays, and it may connect again.", action: "Disconnect", danger: true,
      submit: () => call(`${at}/disconnect`, { method: "POST" }),
    });
    if (done) { say(`${id} is disconnected.`); await look(); }
  } }, "Disconnect");

  function rate(name, seconds, show) {
    const known = before && before.connected_ms === client.connected_ms && client[name] !== null;
    return known ? `${show(Math.round((client[name] - before[name]) / seconds))}/s` : "–";
  }

  function put(seconds) {
    badge.replaceChildren(client ? state("connected", "good") : state("not connected", "off"));
    kick.disabled = !client;
    if (!client) return;
    const rates = Object.fromEntries(COUNTED.map((name) => [name, rate(name, seconds, name.startsWith("bytes") ? bytes : number)]));
    about.replaceChildren(facts({
      User: client.user || "–", Tenant: client.tenant || "–", Address: place(client), Gateway: `${client.gateway}, worker ${client.worker}`, Listener: client.listener,
      Protocol: `MQTT ${client.protocol}`, "Keep alive": client.keep_alive_s ? `${number(client.keep_alive_s)} s` : "none", "Clean start": client.clean_start ? "yes" : "no",
      "Session expires after": duration(client.expiry_s * 1000), "Connected": moment(client.connected_ms),
      "Messages in": `${number(client.messages_in)}, ${rates.messages_in}`, "Messages out": `${number(client.messages_out)}, ${rates.messages_out}`,
      "Bytes in": client.bytes_in === null ? "–" : `${bytes(client.bytes_in)}, ${rates.bytes_in}`, "Bytes out": client.bytes_out === null ? "–" : `${bytes(client.bytes_out)}, ${rates.bytes_out}`,
      "Publishes that wait": number(client.in_flight_in), "Unacknowledged": number(client.in_flight_out),
    }, "facts.plain"));
    putRows(filters.tBodies[0], FILTERS, client.filters, (row) => row.filter);
    filters.hidden = !(none.hidden = client.filters.length > 0);
  }

  async function look() {
    try {
      const found = await call(at, { signal }), now = performance.now();
      before = client;
      client = found;
      put(Math.max(0.1, (now - readAt) / 1000));
      readAt = now;
      tell(wrong, null);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 404) { client = null; put(1); tell(wrong, null); }
      else tell(wrong, error);
    }
  }

  const title = head(id, { crumb: ["Clients", "/clients"], actions: may("operator") ? [kick] : [] });
  title.firstChild.append(badge);
  main.append(title, wrong, about,
    h("section.section", { "aria-labelledby": "filters-title" }, h("h2", { id: "filters-title" }, "Subscriptions"), filters, none));
  put(1);
  every(LOOK_MS, signal, look);
}
