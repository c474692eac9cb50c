// Elements from code. Every text goes in as text: nothing that somebody named is ever markup.

import { kept } from "./address.js";

// h("td.n.wide", { title: "…", onclick: f, hidden: true }, "text", element, null)
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split("."), element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    // A link to another page leads to the same cluster, in a tab of its own too.
    else if (name === "a" && key === "href" && !/^\/(api|static|metrics)\b/.test(value)) element.setAttribute(key, kept(value));
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const at = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Only what changed is written: a selection, and a reader's place, survive what stayed.
export function write(element, text) {
  const shown = String(text);
  if (element.textContent !== shown) element.textContent = shown;
}

// A sentence beside what it is about; none hides it. An error has its hint below.
export function tell(line, what) {
  const sentence = what instanceof Error ? what.message : what ?? "";
  line.classList.toggle("bad", what instanceof Error);
  line.hidden = !sentence;
  if (line.firstChild?.textContent === sentence && !what?.hint) return;
  line.replaceChildren(sentence, ...(what?.hint ? [h("span.hint", {}, what.hint)] : []));
}

export const notice = (attributes = {}) => h("p.notice", { role: "status", hidden: true, ...attributes });

// Says something short to everybody, a screen reader too; it goes by itself.
let saying = 0;
export function say(sentence) {
  clearTimeout(saying);
  at("said").textContent = sentence;
  saying = setTimeout(() => at("said").replaceChildren(), 6000);
}

// Runs `work` at once and then every `ms` after it ended, while the page is open and seen.
export function every(ms, signal, work) {
  let timer = 0;
  const turn = async () => {
    if (!document.hidden) await work();
    if (!signal.aborted) timer = setTimeout(turn, ms);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  return turn();
}

export function head(title, { crumb = null, lead = null, actions = [] } = {}) {
  return h("header.head", {},
    h("div", {}, crumb && h("p.crumb", {}, h("a", { href: crumb[1] }, crumb[0]), " /"), h("h1", { tabindex: "-1" }, title), lead && h("p.lead", {}, lead)),
    h("div.actions", {}, actions));
}

export const empty = (title, ...rest) => h("div.empty", {}, h("b", {}, title), rest);

export const state = (word, level, title) => h("span.state", { "data-state": level, title }, word);

// { "Name": value, … } as a list of facts; values are text or elements.
export function facts(pairs, classes = "facts") {
  return h(`dl.${classes}`, {}, Object.entries(pairs).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
