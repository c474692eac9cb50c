// Accounts of people, and tokens of programs.

import { account } from "../account.js";
import { call, path } from "../api.js";
import { ask } from "../dialog.js";
import { empty, every, h, head, notice, say, state, tell } from "../dom.js";
import { field } from "../fields.js";
import { moment } from "../format.js";
import { putRows, table } from "../rows.js";

const LOOK_MS = 15_000;
const ROLES = [["viewer", "viewer: sees everything, changes nothing"], ["operator", "operator: topics, groups, sessions, dead letters"], ["admin", "admin: also deletes, and gives accounts"]];
const name = (hint) => field("name", "Name", { required: true, maxlength: 64, spellcheck: "false", autocapitalize: "off", hint,
  checks: (typed) => (/^[A-Za-z0-9._@-]+$/.test(typed) ? null : "letters, digits, . _ @ and - only") });
const role = (value = "viewer") => field("role", "Role", { options: ROLES, value });

// What is shown once, and never again.
const once = (title, sentence, secret) => ask({ title, body: [h("p", {}, sentence), h("p.secret", { tabindex: "0" }, secret)], action: null, submit: null });

export function show({ main, signal }) {
  const wrong = notice({ role: "alert" });
  const button = (word, work, attributes = {}) => h("button", { type: "button", ...attributes, onclick: async () => { if (await work()) await look(); } }, word);
  const PEOPLE = [
    { title: "Name", cell: (row) => [row.name, row.name === account().name ? h("span.muted", {}, " (you)") : null] },
    { title: "Role", cell: (row) => h("span.tag", {}, row.role) },
    { title: "State", class: "wide", cell: (row) => (row.disabled ? state("disabled", "off") : row.must_change_password ? state("has not chosen a password", "warn") : state("active", "good")) },
    { title: "Password of", class: "wide", cell: (row) => moment(row.password_ms) },
    { title: h("span.sr", {}, "Change"), class: "act", cell: (row) => [
      button("Edit", () => edit(row), { "aria-label": `Edit ${row.name}` }), " ",
      button("New password", () => renew(row), { "aria-label": `New password for ${row.name}`, class: "wide" }), " ",
      button("Delete", () => remove(row), { "aria-label": `Delete ${row.name}`, class: "danger", disabled: row.name === account().name }),
    ] },
  ];
  const PROGRAMS = [
    { title: "Name", cell: (row) => row.name },
    { title: "Role", cell: (row) => h("span.tag", {}, row.role) },
    { title: "Made", class: "wide", cell: (row) => moment(row.created_ms) },
    { title: "Ends", cell: (row) => (row.expires_ms ? moment(row.expires_ms) : "never") },
    { title: "By", class: "wide", cell: (row) => row.by || "–" },
    { title: h("span.sr", {}, "Change"), class: "act", cell: (row) => button("Revoke", () => revoke(row), { "aria-label": `Revoke ${row.name}`, class: "danger" }) },
  ];
  const people = table("Accounts", PEOPLE), programs = table("Tokens", PROGRAMS, { hidden: true });
  const none = empty("No tokens.", "A program that calls the API sends one: ", h("code", {}, "Authorization: Bearer …"));
  none.hidden = true;

  async function create() {
    const made = await ask({
      title: "Create an account", fields: [name("who signs in with it"), role()], action: "Create",
      submit: (body) => call("/api/v1/accounts", { method: "POST", body }),
    });
    if (made) await once(`${made.account.name} may sign in`, "This password is shown once. At the first sign-in another one is chosen.", made.password);
    return made;
  }

  const edit = (row) => ask({
    title: `Account ${row.name}`, fields: [role(row.role), field("disabled", "Disabled: may not sign in", { type: "checkbox", value: row.disabled })],
    submit: (body) => call(path`/api/v1/accounts/${row.name}`, { method: "PATCH", body }).then((answer) => answer ?? true),
  });

  async function renew(row) {
    const made = await ask({
      title: `A new password for ${row.name}?`, body: "The old one ends, and every browser that is signed in with it.", action: "Make one", danger: true,
      submit: () => call(path`/api/v1/accounts/${row.name}/password`, { method: "POST" }),
    });
    if (made) await once(`${row.name} has a new password`, "It is shown once. At the next sign-in another one is chosen.", made.password);
    return made;
  }

  const remove = (row) => ask({
    title: `Delete ${row.name}?`, body: "The account ends at once, with every browser that is signed in with it. What it did stays in the audit.", typed: row.name, danger: true, action: "Delete",
    submit: () => call(path`/api/v1/accounts/${row.name}`, { method: "DELETE" }).then(() => { say(`${row.name} is deleted.`); return true; }),
  });

  async function issue() {
    const made = await ask({
      title: "Create a token", fields: [name("the program that uses it"), role(), field("days", "Ends after days", { type: "number", min: 1, max: 3650, value: 90, required: true })], action: "Create",
      submit: (body) => call("/api/v1/tokens", { method: "POST", body }),
    });
    if (made) await once(`Token ${made.record.name}`, "It is shown once: put it where the program reads it.", made.token);
    return made;
  }

  const revoke = (row) => ask({
    title: `Revoke ${row.name}?`, body: "Programs that use it are refused from now on.", danger: true, action: "Revoke",
    submit: () => call(path`/api/v1/tokens/${row.name}`, { method: "DELETE" }).then(() => { say(`${row.name} is revoked.`); return true; }),
  });

  async function look() {
    try {
      const [{ accounts }, { tokens }] = await Promise.all([call("/api/v1/accounts", { signal }), call("/api/v1/tokens", { signal })]);
      tell(wrong, null);
      putRows(people.tBodies[0], PEOPLE, accounts, (row) => row.name);
      putRows(programs.tBodies[0], PROGRAMS, tokens, (row) => row.name);
      programs.hidden = !(none.hidden = tokens.length > 0);
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  }

  main.append(head("Accounts", { lead: "Who may sign in, and which programs may call the API.", actions: [button("Create an account", create, { class: "primary" })] }), wrong, people,
    h("section.section", { "aria-labelledby": "tokens-title" }, h("div.tools", {}, h("h2", { id: "tokens-title" }, "Tokens"), h("span.spring"), button("Create a token", issue)), programs, none));
  every(LOOK_MS, signal, look);
}
