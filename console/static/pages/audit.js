// Who did what, when, and whether it was allowed.

import { call, query } from "../api.js";
import { empty, h, head, state } from "../dom.js";
import { moment } from "../format.js";
import { Listing, PAGE } from "../listing.js";

export function show(place) {
  const listing = new Listing(place, {
    label: "Audit",
    search: "Search names, actions and things",
    key: (row) => `${row.time_ms} ${row.account} ${row.method} ${row.path} ${row.status}`,
    columns: [
      { name: "time", title: "When", cell: (row) => moment(row.time_ms) },
      { name: "account", title: "Who", cell: (row) => row.account || "–" },
      { name: "what", title: "What", class: "name", cell: (row) => row.what },
      { name: "status", title: "Outcome", cell: (row) => (row.status < 400 ? state("done", "good") : row.status < 500 ? state("refused", "warn") : state("failed", "bad")) },
      { name: "path", title: "Request", class: "wide small", cell: (row) => h("code", {}, `${row.method} ${row.path} ${row.status}`) },
      { name: "address", title: "From", class: "wide", cell: (row) => row.address || "–" },
    ],
    nothing: empty("Nothing has been done yet.", "Sign-ins and every change are written down here."),
    read: ({ q, after }, signal) => call(`/api/v1/audit${query({ q, after, limit: PAGE })}`, { signal }),
  });
  place.main.append(head("Audit", { lead: "Every sign-in and every change by the console or its API, the newest first." }), listing.element);
}
