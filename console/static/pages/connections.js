// Connections to the brokers: gateways, applications, jobs, this console.

import { call, query } from "../api.js";
import { empty, h, head } from "../dom.js";
import { since } from "../format.js";
import { Listing, PAGE } from "../listing.js";

const ROLES = [["", "all roles"], ["gateway", "gateways"], ["client", "applications"], ["spark", "Spark"], ["console", "consoles"]];

export function show(place) {
  const listing = new Listing(place, {
    label: "Connections",
    search: "Search clients and addresses",
    filters: [{ name: "role", label: "Role", options: ROLES }],
    sort: "client_id",
    key: (row) => `${row.broker} ${row.address}`,
    columns: [
      { name: "client_id", title: "Client", sort: true, cell: (row) => row.client_id || "–" },
      { name: "role", title: "Role", sort: true, cell: (row) => h("span.tag", {}, row.role) },
      { name: "broker", title: "Broker", sort: true, cell: (row) => row.broker },
      { name: "address", title: "Address", class: "wide", cell: (row) => row.address },
      { name: "software", title: "Software", class: "wide", cell: (row) => row.software || row.language || "–" },
      { name: "connected", title: "Up", class: "n", sort: true, cell: (row) => since(row.connected, Date.now()) },
    ],
    nothing: empty("Nothing is connected to the brokers.", "Devices come through a gateway: ", h("code", {}, "holdmq gateway")),
    read: async ({ q, sort, role, after }, signal) => {
      const { connections: rows, ...rest } = await call(`/api/v1/connections${query({ q, sort, role, after, limit: PAGE })}`, { signal });
      return { rows, ...rest };
    },
  });
  place.main.append(head("Connections", { lead: "Who speaks to the brokers: gateways for their devices, applications, Spark, consoles. Devices themselves are among the clients." }), listing.element);
}
