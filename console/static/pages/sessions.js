// MQTT sessions, connected and not, found by the beginning of their client id.

import { call, query } from "../api.js";
import { empty, h, head, state } from "../dom.js";
import { duration, moment } from "../format.js";
import { Listing, PAGE } from "../listing.js";

export function show(place) {
  const listing = new Listing(place, {
    label: "Sessions",
    search: "Client id begins with",
    filters: [{ name: "state", label: "Which sessions", options: [["", "all"], ["online", "connected"], ["offline", "not connected"]] }],
    key: (row) => row.client_id,
    columns: [
      { name: "client_id", title: "Client id", cell: (row) => h("a", { href: `/sessions/${encodeURIComponent(row.client_id)}` }, row.client_id) },
      { name: "state", title: "State", cell: (row) => (row.online ? state("connected", "good") : state("away", "off")) },
      { name: "gateway", title: "Gateway", class: "wide", cell: (row) => row.gateway || "–" },
      { name: "ended_ms", title: "Away since", class: "wide", cell: (row) => moment(row.ended_ms) },
      { name: "expiry_s", title: "Expires after", class: "n", cell: (row) => duration(row.expiry_s * 1000) },
      { name: "principal", title: "User", class: "wide", cell: (row) => row.principal || "–" },
    ],
    nothing: empty("No device has a session.", "One that connects with a session gets one: ", h("code", {}, "mosquitto_sub -c -i meter-1 -t 'devices/#' -q 1")),
    read: async ({ q, state: word, after }, signal) => {
      const { sessions: rows, ...rest } = await call(`/api/v1/sessions${query({ prefix: q, state: word, after, limit: PAGE })}`, { signal });
      return { rows, ...rest };
    },
  });
  place.main.append(head("Sessions", { lead: "MQTT sessions of devices: what they subscribe to, and where they are in the log, also while they are away." }), listing.element);
}
