// Groups that gave messages up.

import { call, query } from "../api.js";
import { empty, h, head } from "../dom.js";
import { number } from "../format.js";
import { Listing, PAGE } from "../listing.js";

export function show(place) {
  const listing = new Listing(place, {
    label: "Groups with dead letters",
    search: "Search groups",
    sort: "group",
    key: (row) => row.group,
    columns: [
      { name: "group", title: "Group", sort: true, cell: (row) => h("a", { href: `/dead-letters/${encodeURIComponent(row.group)}` }, row.group) },
      { name: "messages", title: "Dead letters", class: "n", sort: true, cell: (row) => number(row.messages) },
      { name: "resent", title: "Sent again", class: "n", sort: true, cell: (row) => number(row.resent) },
    ],
    nothing: empty("No group has given a message up.", "After its last retry a message comes here, and stays until it is sent again or purged."),
    read: async ({ q, sort, after }, signal) => {
      const { groups: rows, ...rest } = await call(`/api/v1/dead-letters${query({ q, sort, after, limit: PAGE })}`, { signal });
      return { rows, ...rest };
    },
  });
  place.main.append(head("Dead letters", { lead: "Messages that a group failed with too often. Nothing else waits for them: read why, send them again, or give them up." }), listing.element);
}
