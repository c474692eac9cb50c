// Tenants: who shares the cluster, what each has, and what it uses of its quota.

import { may } from "../account.js";
import { call, path, query } from "../api.js";
import { ask } from "../dialog.js";
import { empty, h, head, say } from "../dom.js";
import { number, short } from "../format.js";
import { Listing, PAGE } from "../listing.js";

const LIMITS = [
  ["publish_rate", "Messages a second", "messages_per_s"],
  ["publish_bytes_rate", "Bytes a second", "bytes_per_s"],
  ["connections", "Connections", "connections"],
  ["sessions", "Sessions", "sessions"],
  ["topics", "Topics", "topics"],
  ["kept_bytes", "Kept bytes", "kept_bytes"],
];
const uses = ({ quota }) => (quota ? h("ul", {}, ...LIMITS.filter(([limit]) => quota[limit]).map(([limit, title, used]) => h("li", {}, `${title}: ${number(quota.used[used])} of ${number(quota[limit])}`))) : "–");
const words = (names) => names.join(", ") || "none";

export function show(place) {
  const details = async (name) => {
    const found = await call(path`/api/v1/tenants/${name}`, { signal: place.signal });
    await ask({
      title: name, action: null,
      body: [`Topics: ${words(found.topics)}`, `Groups: ${words(found.groups)}`, `Access keys: ${words(found.access_keys)}`, "It names them so; in whole their names begin with it and %."],
    });
  };
  const remove = async (row) => {
    const done = await ask({
      title: `Remove ${row.tenant}?`,
      body: `${number(row.topics)} topics with ${number(row.messages)} messages, ${number(row.groups)} groups and its quota go for good, at once. Its applications have to be stopped first.`,
      action: "Remove the tenant", danger: true, typed: row.tenant,
      submit: () => call(path`/api/v1/tenants/${row.tenant}`, { method: "DELETE" }),
    });
    if (!done) return;
    say([...done.left, done.notice].filter(Boolean).join("; ") || `${row.tenant} is removed.`);
    await listing.show();
  };
  const listing = new Listing(place, {
    label: "Tenants",
    search: "Search tenants",
    sort: "tenant",
    key: (row) => row.tenant,
    columns: [
      { name: "tenant", title: "Tenant", sort: true, cell: (row) => row.tenant },
      { name: "topics", title: "Topics", class: "n", sort: true, cell: (row) => number(row.topics) },
      { name: "groups", title: "Groups", class: "n wide", sort: true, cell: (row) => number(row.groups) },
      { name: "messages", title: "Messages", class: "n", sort: true, cell: (row) => short(row.messages) },
      { name: "access_keys", title: "Access keys", class: "wide", cell: (row) => row.access_keys.join(", ") || "–" },
      { name: "quota", title: "Uses", class: "wide", cell: uses },
      { name: "What to do", title: "", cell: (row) => [
        h("button", { type: "button", "aria-label": `Show what ${row.tenant} has`, onclick: () => details(row.tenant) }, "Show"),
        may("admin") ? h("button", { type: "button", "aria-label": `Remove ${row.tenant}`, onclick: () => remove(row) }, "Remove") : "",
      ] },
    ],
    nothing: empty("No tenants.", "One exists as soon as a topic, group, access key or quota names it: acme%orders is acme’s."),
    read: async ({ q, sort, after }, signal) => {
      const { tenants: rows, ...rest } = await call(`/api/v1/tenants${query({ q, sort, after, limit: PAGE })}`, { signal });
      return { rows, ...rest };
    },
  });
  place.main.append(head("Tenants", { lead: "Who shares the cluster: what each has, and what it uses of its quota." }), listing.element);
}
