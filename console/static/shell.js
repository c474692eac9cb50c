// The shell: who is signed in, what the role may open, and the page that the address names.

import { cluster, go, onMoved, setQuery } from "./address.js";
import { account, forget, hasAccounts, load, may, signOut } from "./account.js";
import { call, onTurnedAway } from "./api.js";
import { at, every, h, notice, say, tell } from "./dom.js";
import { askPassword } from "./password.js";
import { themeSwitch } from "./theme_switch.js";

const NAVIGATION = [
  ["Now", [["/", "Overview"], ["/replicas", "Replicas"], ["/alarms", "Alarms"]]],
  ["Messages", [["/topics", "Topics"], ["/messages", "Search"], ["/groups", "Groups"], ["/dead-letters", "Dead letters"]]],
  ["Clients", [["/clients", "Clients"], ["/sessions", "Sessions"], ["/bans", "Bans"], ["/quotas", "Quotas"], ["/tenants", "Tenants"], ["/connections", "Connections"]]],
  ["Past", [["/analysis", "Analysis"]]],
  ["Access", [["/accounts", "Accounts", "admin"], ["/audit", "Audit", "admin"]]],
];

const PAGES = [
  [/^\/$/, "overview", "Overview"],
  [/^\/topics$/, "topics", "Topics"],
  [/^\/topics\/([^/]+)$/, "topic", "Topic"],
  [/^\/messages$/, "messages", "Search"],
  [/^\/messages\/([^/]+)$/, "message", "Message"],
  [/^\/groups$/, "groups", "Groups"],
  [/^\/groups\/([^/]+)$/, "group", "Group"],
  [/^\/dead-letters$/, "dead_letters", "Dead letters"],
  [/^\/dead-letters\/([^/]+)$/, "dead_letters_of", "Dead letters"],
  [/^\/clients$/, "clients", "Clients"],
  [/^\/clients\/([^/]+)$/, "client", "Client"],
  [/^\/bans$/, "bans", "Bans"],
  [/^\/quotas$/, "quotas", "Quotas"],
  [/^\/tenants$/, "tenants", "Tenants"],
  [/^\/sessions$/, "sessions", "Sessions"],
  [/^\/sessions\/([^/]+)$/, "session", "Session"],
  [/^\/connections$/, "connections", "Connections"],
  [/^\/replicas$/, "replicas", "Replicas"],
  [/^\/alarms$/, "alarms", "Alarms"],
  [/^\/accounts$/, "accounts", "Accounts"],
  [/^\/audit$/, "audit", "Audit"],
  [/^\/analysis$/, "analysis", "Analysis"],
];

// The pages' own titles may change each second; the account may change its role at any time.
const ACCOUNT_MS = 60_000;

let leaving = new AbortController();
let isFirst = true;

async function open() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving, main = at("main"), isIn = account() !== null && !account().must_change_password;
  frame(isIn);
  const [name, title, args] = isIn ? named(location.pathname) : ["sign_in", "Sign in", []];
  document.title = `${title} · HoldMQ`;
  main.setAttribute("aria-busy", "true");
  // A page is built beside the one that is there: nothing flickers, and a slow answer leaves no blank.
  const page = h("div.page");
  try {
    const { show } = await import(`./pages/${name}.js`);
    if (signal.aborted) return;
    await show({ main: page, args, signal, query: new URLSearchParams(location.search), again: start });
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    const line = notice({ role: "alert" });
    tell(line, error);
    page.append(page.querySelector("h1") ? "" : h("h1", { tabindex: "-1" }, title), line);
  }
  if (signal.aborted) return;
  main.replaceChildren(page);
  main.setAttribute("aria-busy", "false");
  page.dispatchEvent(new Event("shown"));
  if (!isFirst) {
    // A reader, and the keyboard, go on at the new page's title; the first page begins at its top.
    scrollTo(0, 0);
    if (!page.contains(document.activeElement)) page.querySelector("h1")?.focus();
  }
  isFirst = false;
}

function named(path) {
  for (const [pattern, name, title] of PAGES) {
    const found = pattern.exec(path);
    if (!found) continue;
    const args = found.slice(1).map(decodeURIComponent);
    return [name, args.length ? `${args[0]} · ${title}` : title, args];
  }
  return ["not_found", "Not found", []];
}

function frame(isIn) {
  at("shell").dataset.signed = isIn ? "in" : "out";
  if (at("side").matches(":popover-open")) at("side").hidePopover();
  at("side").hidden = at("menu").hidden = !isIn;
  if (!isIn) return;
  offerClusters();
  const path = location.pathname;
  at("pages").replaceChildren(...NAVIGATION.flatMap(([heading, links]) => {
    const shown = links.filter(([, , role]) => may(role ?? "viewer")), id = `pages-${heading.toLowerCase()}`;
    const current = (to) => (path === to ? "page" : to !== "/" && path.startsWith(`${to}/`) ? "true" : null);
    return shown.length ? h("section", {}, h("h2", { id }, heading), h("ul", { "aria-labelledby": id },
      shown.map(([to, title]) => h("li", {}, h("a", { href: to, "aria-current": current(to) }, title))))) : [];
  }));
  const { name, role } = account();
  at("account-menu").hidden = !hasAccounts();
  at("account-name").textContent = name;
  at("account-role").textContent = role;
}

// Who has several clusters at the registries chooses among them; one that is gone stays chosen until it is left.
async function offerClusters() {
  let found = [];
  try {
    found = (await call("/api/v1/clusters")).clusters.map((one) => one.cluster);
  } catch (error) {
    console.warn("the clusters could not be read:", error);
    if (!cluster()) return;
  }
  const names = [...new Set([...found, cluster()])].filter(Boolean).sort();
  at("clusters").hidden = names.length < 2 && !cluster();
  at("cluster-choice").replaceChildren(...["", ...names].map((name) => h("option", { value: name, selected: name === cluster() }, name || "All clusters")));
}

async function start() {
  try {
    await load();
  } catch (error) {
    forget();
    console.warn("the account could not be read:", error);
  }
  await open();
}

at("cluster-choice").addEventListener("change", ({ target }) => {
  setQuery({ cluster: target.value });
  open();
});
themeSwitch(at("theme"));
at("account-menu").addEventListener("toggle", () => at("sign-out").scrollIntoView({ block: "nearest" }));
at("password").addEventListener("click", async () => {
  at("account-menu").open = false;
  if (await askPassword()) say("The password is changed. Other browsers are signed out.");
});
at("sign-out").addEventListener("click", async () => {
  try {
    await signOut();
    at("account-menu").open = false;
    go("/");
  } catch (error) {
    say(error.message);
  }
});
onTurnedAway(({ status }) => {
  if (account() === null || account().must_change_password) return;
  if (status !== 401) return start();
  forget();
  say("You are signed out: sign in again, and go on where you were.");
  open();
});
onMoved(open);
start();
every(ACCOUNT_MS, new AbortController().signal, async () => {
  const before = account()?.role;
  if (!before) return;
  try { await load(); } catch { return; }
  if (account()?.role !== before) open();
});
