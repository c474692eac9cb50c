// Quotas: what tenants, users and access keys may use of the cluster, and what they use now.

import { may } from "../account.js";
import { call, path } from "../api.js";
import { ask } from "../dialog.js";
import { empty, every, h, head, notice, say, tell } from "../dom.js";
import { field } from "../fields.js";
import { number } from "../format.js";
import { putRows, table } from "../rows.js";

const LOOK_MS = 5000;
const KINDS = [["user", "MQTT user"], ["key", "access key"], ["tenant", "tenant"]];
const LIMITS = [
  ["publish_rate", "Messages a second", "messages_per_s"],
  ["publish_bytes_rate", "Bytes a second", "bytes_per_s"],
  ["connections", "Connections", "connections"],
  ["sessions", "Sessions", "sessions"],
  ["topics", "Topics", "topics"],
  ["kept_bytes", "Kept bytes", "kept_bytes"],
];
const whole = (text) => (/^\d{0,15}$/.test(text.trim()) ? null : "write a whole number, or nothing for no limit");

export async function show({ main, signal }) {
  let found = await call("/api/v1/quotas", { signal });
  const wrong = notice({ role: "alert" });
  const remove = (row) => (row.is_own ? h("button", { type: "button", "aria-label": `Remove the quota of ${row.kind} ${row.name}`, onclick: async () => {
    const done = await ask({
      title: `Have no quota for ${row.name} any more?`, body: "It may use as much as it likes from then on, or what everybody of its kind may.", action: "Remove the quota", danger: true,
      submit: () => call(path`/api/v1/quotas/${row.kind}/${row.name}`, { method: "DELETE" }),
    });
    if (done) { say(done.notice ?? `${row.name} has no quota any more.`); await look(); }
  } }, "Remove") : "–");
  const columns = [
    { title: "Whose", cell: (row) => `${row.kind} ${row.name}` },
    { title: "Uses", cell: (row) => h("ul", {}, ...LIMITS.filter(([limit]) => row[limit]).map(([limit, title, used]) => h("li", {}, `${title}: ${number(row.used[used])} of ${number(row[limit])}`))) },
    { title: "Waited", class: "n wide", cell: (row) => number(row.used.waited) },
    { title: "Refused", class: "n wide", cell: (row) => number(row.used.refused) },
    { title: "Set by", class: "wide", cell: (row) => row.by || "–" },
    ...(may("operator") ? [{ title: "", name: "What to do", cell: remove }] : []),
  ];
  const rows = table("Quotas", columns), none = empty("Nobody has a quota.", "Everybody may use as much as there is.");
  const set = h("button.primary", { type: "button", onclick: async () => {
    const done = await ask({
      title: "Set a quota",
      body: "It replaces the one of before. Who exceeds a rate waits; who exceeds a number is refused.",
      fields: [
        field("kind", "Whose", { options: KINDS }),
        field("name", "Name", { required: true, hint: "* is each one that has no quota of its own." }),
        ...LIMITS.map(([limit, title]) => field(limit, title, { checks: whole })),
      ],
      action: "Set",
      submit: ({ kind, name, ...limits }) => call(path`/api/v1/quotas/${kind}/${name.trim()}`, { method: "PUT", body: Object.fromEntries(Object.entries(limits).filter(([, text]) => text.trim()).map(([limit, text]) => [limit, Number(text)])) }),
    });
    if (done) { say(done.notice ?? `${done.name} has this quota now.`); await look(); }
  } }, "Set a quota");

  function put() {
    putRows(rows.tBodies[0], columns, found.quotas, (row) => `${row.kind} ${row.name}`);
    rows.hidden = !(none.hidden = found.quotas.length > 0);
    const lacking = found.quotas.filter((row) => row.lacking.length).map((row) => `${row.name}: ${row.lacking.join(", ")} has another quota, or none; set it again`);
    tell(wrong, found.notice ?? (lacking.length ? lacking.join("; ") : undefined));
  }

  async function look() {
    try {
      found = await call("/api/v1/quotas", { signal });
      put();
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }

  main.append(head("Quotas", { lead: "What tenants, users and access keys may use of the cluster, and what they use now.", actions: may("operator") ? [set] : [] }), wrong, rows, none);
  put();
  every(LOOK_MS, signal, look);
}
