// Connections to the brokers: gateways, applications, jobs, this console.

import { call, query } from "../api.js";
import { empty, every, h, head, notice, tell } from "../dom.js";
import { bytes, since } from "../format.js";
import { Listing, PAGE } from "../listing.js";
import { putRows, table } from "../rows.js";

const KINDS = [["", "all kinds"], ["producer", "producers"], ["consumer", "consumers"], ["gateway", "gateways"], ["spark", "Spark"], ["console", "consoles"]];
const ROLES = [["", "all roles"], ["gateway", "gateways"], ["client", "applications"], ["spark", "Spark"], ["console", "consoles"]];

const SOURCES = [
  { title: "Name", cell: (row) => row.name || "–" },
  { title: "In, per second", class: "n", cell: (row) => row.messages_in_per_s.toFixed(1) },
  { title: "Data in", class: "n wide", cell: (row) => bytes(row.bytes_in_per_s) },
  { title: "Out, per second", class: "n", cell: (row) => row.messages_out_per_s.toFixed(1) },
  { title: "Data out", class: "n wide", cell: (row) => bytes(row.bytes_out_per_s) },
  { title: "Replayed, per second", class: "n wide", cell: (row) => row.messages_replayed_per_s.toFixed(1) },
];
const LOOK_MS = 5000;

const few = (names) => (names.length ? names.slice(0, 3).join(", ") + (names.length > 3 ? ` +${names.length - 3}` : "") : "–");

export function show(place) {
  const listing = new Listing(place, {
    label: "Connections",
    search: "Search clients and addresses",
    filters: [{ name: "kind", label: "Kind", options: KINDS }, { name: "role", label: "Role", options: ROLES }],
    sort: "client_id",
    key: (row) => `${row.broker} ${row.address}`,
    columns: [
      { name: "client_id", title: "Client", sort: true, cell: (row) => row.client_id || "–" },
      { name: "kinds", title: "Kind", cell: (row) => (row.kinds.length ? h("span", {}, ...row.kinds.map((kind) => h("span.tag", {}, kind))) : row.role) },
      { name: "produces", title: "Sends to", class: "wide", cell: (row) => few(row.produces) },
      { name: "groups", title: "Groups", class: "wide", cell: (row) => few(row.groups) },
      { name: "reads", title: "Reads", class: "wide", cell: (row) => few(row.reads) },
      { name: "principal", title: "Access key", class: "wide", cell: (row) => row.principal || "–" },
      { name: "broker", title: "Broker", sort: true, cell: (row) => row.broker },
      { name: "address", title: "Address", class: "wide", cell: (row) => row.address },
      { name: "software", title: "Software", class: "wide", cell: (row) => row.software || row.language || "–" },
      { name: "connected", title: "Up", class: "n", sort: true, cell: (row) => since(row.connected, Date.now()) },
    ],
    nothing: empty("Nothing is connected to the brokers.", "Devices come through a gateway: ", h("code", {}, "holdmq gateway")),
    read: async ({ q, sort, role, kind, after }, signal) => {
      const { connections: rows, ...rest } = await call(`/api/v1/connections${query({ q, sort, role, kind, after, limit: PAGE })}`, { signal });
      return { rows, ...rest };
    },
  });
  place.main.append(head("Connections", { lead: "Who speaks to the brokers: gateways for their devices, applications, Spark, consoles. Devices themselves are among the clients." }), listing.element, busiest(place.signal));
}

// The clients and the access keys that sent and took most in the last minute.
function busiest(signal) {
  const wrong = notice({ role: "alert" }), clients = table("Busiest clients", SOURCES), keys = table("Busiest access keys", SOURCES);
  const noKeys = empty("No access key was used."), noClients = empty("Nobody sent or took anything yet.");
  async function look() {
    try {
      const found = await call("/api/v1/connections/busiest", { signal });
      putRows(clients.tBodies[0], SOURCES, found.clients, (row) => row.name);
      putRows(keys.tBodies[0], SOURCES, found.access_keys, (row) => row.name);
      clients.hidden = !(noClients.hidden = found.clients.length > 0);
      keys.hidden = !(noKeys.hidden = found.access_keys.length > 0);
      tell(wrong, found.notice);
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }
  look();
  every(LOOK_MS, signal, look);
  return h("section.section", { id: "busiest", "aria-labelledby": "busiest-title" }, h("h2", { id: "busiest-title" }, "Who sends and takes most, in the last minute"), wrong,
    h("h3", {}, "By client"), noClients, clients, h("h3", {}, "By access key"), noKeys, keys);
}
