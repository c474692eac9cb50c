// All topics, searched, sorted and cut into pages by the server.

import { may } from "../account.js";
import { go } from "../address.js";
import { call, query } from "../api.js";
import { empty, h, head, state } from "../dom.js";
import { bytes, duration, number, short } from "../format.js";
import { Listing, PAGE } from "../listing.js";
import { createTopic } from "../topic_dialogs.js";

const PERMS = { r: "read only", w: "write only" };

export function show(place) {
  const create = async () => {
    const made = await createTopic();
    if (made) go(`/topics/${encodeURIComponent(made.topic)}`);
  };
  const button = () => may("operator") && h("button.primary", { type: "button", onclick: create }, "Create a topic");
  const listing = new Listing(place, {
    label: "Topics",
    search: "Search topics",
    filters: [{ name: "system", label: "Which topics", options: [["", "without system topics"], ["1", "with system topics"]] }],
    sort: "topic",
    key: (row) => row.topic,
    columns: [
      { name: "topic", title: "Topic", sort: true, cell: (row) => h("a", { href: `/topics/${encodeURIComponent(row.topic)}` }, row.topic) },
      { name: "state", title: "State", cell: (row) => [row.is_paused ? state("paused", "warn") : null, row.kind === "log" ? null : h("span.tag", {}, row.kind), row.perm === "rw" ? null : h("span.tag", {}, PERMS[row.perm] ?? "closed"), row.order ? h("span.tag", {}, "order") : null] },
      { name: "write_queues", title: "Queues", class: "n wide", sort: true, cell: (row) => number(row.write_queues) },
      { name: "retention_ms", title: "Retention", class: "n wide", cell: (row) => (row.retention_ms ? duration(row.retention_ms) : "as the log") },
      { name: "messages_in", title: "In", class: "n", sort: true, cell: (row) => short(row.messages_in) },
      { name: "bytes_in", title: "Data in", class: "n wide", sort: true, cell: (row) => bytes(row.bytes_in) },
      { name: "messages_out", title: "Out", class: "n wide", sort: true, cell: (row) => short(row.messages_out) },
      { name: "messages_replayed", title: "Replayed", class: "n wide", sort: true, cell: (row) => short(row.messages_replayed) },
      { name: "messages_stored", title: "Stored", class: "n", sort: true, cell: (row) => short(row.messages_stored) },
    ],
    nothing: empty("No topics yet.", "The first message to a topic creates it", may("operator") ? ", or you do: " : ".", button()),
    read: async ({ q, sort, system, after }, signal) => {
      const { topics: rows, ...rest } = await call(`/api/v1/topics${query({ q, sort, system, after, limit: PAGE })}`, { signal });
      return { rows, ...rest };
    },
  });
  place.main.append(head("Topics", { lead: "Where messages are kept: a topic is MQTT’s first level, and its queues are shared out to consumers.", actions: [button()] }), listing.element);
}
