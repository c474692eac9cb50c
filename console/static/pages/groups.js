// Consumer groups with their backlog, by count and by age.

import { may } from "../account.js";
import { go } from "../address.js";
import { call, query } from "../api.js";
import { ask } from "../dialog.js";
import { empty, h, head, state } from "../dom.js";
import { field } from "../fields.js";
import { duration, number, short } from "../format.js";
import { Listing, PAGE } from "../listing.js";

const create = () => ask({
  title: "Create a group",
  fields: [
    field("group", "Name", { required: true, maxlength: 120, spellcheck: "false", autocapitalize: "off", hint: "letters, digits, _ and -",
      checks: (typed) => (/^[A-Za-z0-9_-]+$/.test(typed) ? null : "letters, digits, _ and - only") }),
    field("retry_max_times", "Retries before a message is a dead letter", { type: "number", min: 0, max: 1000, value: 16 }),
  ],
  action: "Create",
  submit: (body) => call("/api/v1/groups", { method: "POST", body }),
});

export function show(place) {
  const button = () => may("operator") && h("button.primary", { type: "button", onclick: async () => {
    const made = await create();
    if (made) go(`/groups/${encodeURIComponent(made.group)}`);
  } }, "Create a group");
  const listing = new Listing(place, {
    label: "Groups",
    search: "Search groups",
    sort: "-lag",
    key: (row) => row.group,
    columns: [
      { name: "group", title: "Group", sort: true, cell: (row) => h("a", { href: `/groups/${encodeURIComponent(row.group)}` }, row.group) },
      { name: "state", title: "State", cell: (row) => (row.is_paused ? state("paused", "warn") : row.members ? state("consuming", "good") : state("no members", "off")) },
      { name: "mode", title: "Mode", class: "wide", cell: (row) => row.mode || "–" },
      { name: "members", title: "Members", class: "n wide", sort: true, cell: (row) => number(row.members) },
      { name: "lag", title: "Waiting", class: "n", sort: true, cell: (row) => short(row.lag) },
      { name: "age_ms", title: "Oldest", class: "n", sort: true, cell: (row) => (row.age_ms ? duration(row.age_ms) : "–") },
    ],
    nothing: empty("No groups yet.", "A consumer’s first connection creates its group", may("operator") ? ", or you do: " : ".", button()),
    read: async ({ q, sort, after }, signal) => {
      const { groups: rows, ...rest } = await call(`/api/v1/groups${query({ q, sort, after, limit: PAGE })}`, { signal });
      return { rows, ...rest };
    },
  });
  place.main.append(head("Groups", { lead: "Programs that share the work on topics, and how far behind they are: by messages, and by the age of the oldest that waits.", actions: [button()] }), listing.element);
}
