// The shell: the navigation, and the page that the address names.

import { onMoved } from "./address.js";
import { at, h, notice, tell } from "./dom.js";
import { themeSwitch } from "./theme_switch.js";

const NAVIGATION = [["Now", [["/", "Overview"]]], ["Past", [["/analysis", "Analysis"]]]];

const PAGES = [[/^\/$/, "overview", "Overview"], [/^\/analysis$/, "analysis", "Analysis"]];

let leaving = new AbortController();
let isFirst = true;

async function open() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving, main = at("main"), [name, title, args] = named(location.pathname);
  frame();
  document.title = `${title} · HoldMQ`;
  main.setAttribute("aria-busy", "true");
  // A page is built beside the one that is there: nothing flickers, and a slow answer leaves no blank.
  const page = h("div.page");
  try {
    const { show } = await import(`./pages/${name}.js`);
    if (signal.aborted) return;
    await show({ main: page, args, signal, query: new URLSearchParams(location.search) });
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

function frame() {
  if (at("side").matches(":popover-open")) at("side").hidePopover();
  const path = location.pathname;
  at("pages").replaceChildren(...NAVIGATION.map(([heading, links]) => {
    const id = `pages-${heading.toLowerCase()}`, current = (to) => (path === to ? "page" : null);
    return h("section", {}, h("h2", { id }, heading), h("ul", { "aria-labelledby": id },
      links.map(([to, title]) => h("li", {}, h("a", { href: to, "aria-current": current(to) }, title)))));
  }));
}

themeSwitch(at("theme"));
onMoved(open);
open();
