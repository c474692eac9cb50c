// MQTT clients that are connected, to whichever gateway: searched, sorted, sent away.

import { may } from "../account.js";
import { call, query } from "../api.js";
import { ask } from "../dialog.js";
import { empty, every, h, head, notice, say, tell } from "../dom.js";
import { bytes, number } from "../format.js";
import { Listing, PAGE } from "../listing.js";
import { putRows, table } from "../rows.js";

const PROTOCOLS = [["", "all versions"], ["5", "MQTT 5"], ["3.1.1", "MQTT 3.1.1"], ["3.1", "MQTT 3.1"]];

export const ago = (ms) => {
  const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
  const [unit, word] = seconds < 120 ? [1, "s"] : seconds < 7200 ? [60, "min"] : seconds < 172_800 ? [3600, "h"] : [86_400, "d"];
  return `${number(Math.floor(seconds / unit))} ${word}`;
};
export const place = (row) => (row.address ? (row.address.includes(":") ? `[${row.address}]:${row.port}` : `${row.address}:${row.port}`) : "UNIX socket");

const BUSIEST = [
  { title: "Name", cell: (row) => row.name || "(nobody)" },
  { title: "Connections", class: "n wide", cell: (row) => number(row.connections) },
  { title: "In", class: "n", cell: (row) => (row.error ? `${number(row.messages_in)} (${number(row.error)} not sure)` : number(row.messages_in)) },
  { title: "Data in", class: "n wide", cell: (row) => bytes(row.bytes_in) },
  { title: "Out", class: "n", cell: (row) => number(row.messages_out) },
  { title: "Data out", class: "n wide", cell: (row) => bytes(row.bytes_out) },
];
const LOOK_MS = 15_000;

// The users and the clients that sent and got most since their gateway workers were started.
function busiest(signal) {
  const wrong = notice({ role: "alert" }), none = empty("Nobody sent or got anything yet.");
  const tables = { user: table("Busiest users", BUSIEST), client: table("Busiest clients", BUSIEST) };
  async function look() {
    try {
      const found = await Promise.all(Object.keys(tables).map((by) => call(`/api/v1/clients-busiest${query({ by, limit: 10 })}`, { signal })));
      Object.values(tables).forEach((shown, at) => putRows(shown.tBodies[0], BUSIEST, found[at].busiest, (row) => row.name));
      const has = found.some((one) => one.busiest.length > 0);
      none.hidden = has;
      for (const shown of Object.values(tables)) shown.hidden = !has;
      tell(wrong, found[0].notice || found[1].notice);
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }
  look();
  every(LOOK_MS, signal, look);
  return h("section.section", { id: "busiest", "aria-labelledby": "busiest-title" }, h("h2", { id: "busiest-title" }, "Who sends and gets most"), wrong, none,
    h("h3", {}, "By user"), tables.user, h("h3", {}, "By client"), tables.client);
}

export function show(place_) {
  let wanted = {};
  const listing = new Listing(place_, {
    label: "Clients",
    search: "Client id begins with, or has * and ?",
    filters: [
      { name: "user", label: "User begins with" },
      { name: "address", label: "Address or network" },
      { name: "gateway", label: "Gateway begins with" },
      { name: "protocol", label: "Protocol version", options: PROTOCOLS },
    ],
    sort: "client_id",
    key: (row) => `${row.gateway} ${row.worker} ${row.client_id}`,
    columns: [
      { name: "client_id", title: "Client id", sort: true, cell: (row) => h("a", { href: `/clients/${encodeURIComponent(row.client_id)}` }, row.client_id) },
      { name: "tenant", title: "Tenant", class: "wide", cell: (row) => row.tenant || "–" },
      { name: "user", title: "User", class: "wide", sort: true, cell: (row) => row.user || "–" },
      { name: "address", title: "Address", class: "wide", sort: true, cell: (row) => place(row) },
      { name: "version", title: "MQTT", class: "wide", sort: true, cell: (row) => row.protocol },
      { name: "keep_alive", title: "Keep alive", class: "n wide", sort: true, cell: (row) => `${number(row.keep_alive_s)} s` },
      { name: "connected", title: "For", class: "n", sort: true, cell: (row) => ago(row.connected_ms) },
      { name: "gateway", title: "Gateway", class: "wide", cell: (row) => `${row.gateway} ${row.worker}` },
      { name: "subscriptions", title: "Filters", class: "n wide", sort: true, cell: (row) => number(row.subscriptions) },
      { name: "in_flight", title: "In flight", class: "n wide", sort: true, cell: (row) => number(row.in_flight_in + row.in_flight_out) },
      { name: "messages_in", title: "In", class: "n", sort: true, cell: (row) => number(row.messages_in) },
      { name: "messages_out", title: "Out", class: "n", sort: true, cell: (row) => number(row.messages_out) },
      { name: "bytes", title: "Bytes", class: "n wide", cell: (row) => (row.bytes_in === null ? "–" : bytes(row.bytes_in + row.bytes_out)) },
    ],
    nothing: empty("No client is connected.", "Gateways listen for MQTT: ", h("code", {}, "mosquitto_sub -i meter-1 -t 'devices/#'")),
    read: async ({ q, user, address, gateway, protocol, sort, after }, signal) => {
      wanted = Object.fromEntries(Object.entries({ client: q, user, address, gateway, protocol }).filter(([, value]) => value));
      const { clients: rows, ...rest } = await call(`/api/v1/clients${query({ ...wanted, sort, after, limit: PAGE })}`, { signal });
      return { rows, ...rest };
    },
  });
  const kick = h("button.danger", { type: "button", onclick: async () => {
    // Whom the list shows, whatever it shows by the time that the question is answered.
    const chosen = Object.keys(wanted).length ? { ...wanted } : { client: "*" };
    let count;
    try {
      ({ clients: count } = await call("/api/v1/clients/kick", { method: "POST", body: { ...chosen, dry_run: true } }));
    } catch (error) {
      say(error.message);
      return;
    }
    const done = await ask({
      title: `Disconnect ${number(count)} clients?`,
      body: `${Object.keys(wanted).length ? "All that the search finds" : "Everybody"} is disconnected now. Their sessions stay, and they may connect again.`,
      typed: String(count), action: "Disconnect", danger: true,
      submit: () => call("/api/v1/clients/kick", { method: "POST", body: chosen }),
    });
    if (done) { say(`${number(done.clients)} clients are disconnected.`); await listing.show(); }
  } }, "Disconnect these");
  place_.main.append(head("Clients", { lead: "Who is connected now, to whichever gateway. Who is away and has a session is among the sessions.", actions: may("operator") ? [kick] : [] }), listing.element, busiest(place_.signal));
}
