// A list that the server searches, sorts and cuts into pages. What is asked stands in the address, so that a
// reload, a link and the browser's "back" show the same.

import { setQuery } from "./address.js";
import { empty, every, h, notice, tell } from "./dom.js";
import { number } from "./format.js";
import { dotted, putRows } from "./rows.js";

export const PAGE = 50;

// `columns` are { name, title, sort, cell(row), class }: `sort` says that the server sorts by `name`.
// `read(asked, signal)` with { q, sort, page | after, … } answers { rows, total, next }; `filters` are { name, label,
// options: [[value, word], …] }, without options a text.
export class Listing {
  #place; #columns; #read; #key; #nothing; #query; #filters; #sort; #after = []; #asking = 0; #stop = null;
  element; #table; #scroll; #notice; #none; #pager; #count;

  constructor(place, { label, columns, read, key, nothing, search = null, filters = [], sort = "", refresh_ms = 5000, prefix = "" }) {
    this.#place = place;
    this.#columns = columns;
    this.#read = read;
    this.#key = key;
    this.#nothing = nothing;
    const asked = place.query;
    this.#sort = asked.get(`${prefix}sort`) ?? sort;
    this.prefix = prefix;
    this.#query = search && h("input", { type: "search", placeholder: search, "aria-label": search, value: asked.get(`${prefix}q`) ?? "", spellcheck: "false", autocapitalize: "off" });
    this.#filters = filters.map(({ name, label, options, value = "" }) => [name, options
      ? h("select", { "aria-label": label }, options.map(([word, shown]) => h("option", { value: word, selected: word === (asked.get(prefix + name) ?? value) }, shown)))
      : h("input", { type: "search", placeholder: label, "aria-label": label, value: asked.get(prefix + name) ?? value, spellcheck: "false", autocapitalize: "off" })]);
    let typing = 0;
    const typed = () => { clearTimeout(typing); typing = setTimeout(() => this.#changed(), 200); };
    this.#query?.addEventListener("input", typed);
    for (const [, choice] of this.#filters) choice.addEventListener(choice.localName === "select" ? "change" : "input", choice.localName === "select" ? () => this.#changed() : typed);
    this.#count = h("span.muted.small", { role: "status" });
    this.#notice = notice({ role: "alert" });
    this.#none = h("div", { hidden: true });
    this.#pager = h("nav.pager", { "aria-label": `Pages of ${label}`, hidden: true });
    this.#table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, columns.map((column) => this.#header(column)))), h("tbody"));
    this.#scroll = h("div", { "aria-busy": "true" }, this.#table);
    this.#table.hidden = true;
    const tools = this.#query || this.#filters.length ? h("div.tools", {}, this.#query, this.#filters.map(([, choice]) => choice), this.#count) : null;
    this.element = h("div", {}, tools, this.#notice, this.#scroll, this.#none, this.#pager);
    every(refresh_ms, place.signal, () => this.show());
  }

  #header(column) {
    if (!column.sort) return h(`th${dotted(column)}`, { scope: "col" }, column.title || h("span.sr", {}, column.name));
    return h(`th${dotted(column)}`, { scope: "col", "data-name": column.name }, h("button", {
      type: "button",
      onclick: () => {
        // Numbers begin with the largest, names with A.
        const first = column.class?.includes("n") ? `-${column.name}` : column.name;
        const other = first.startsWith("-") ? column.name : `-${column.name}`;
        this.#sort = this.#sort === first ? other : first;
        this.#changed();
      },
    }, column.title));
  }

  asked() {
    const asked = { sort: this.#sort, q: this.#query?.value.trim() ?? "", after: this.#after.at(-1) ?? "" };
    for (const [name, choice] of this.#filters) asked[name] = choice.value.trim();
    return asked;
  }

  #changed() {
    this.#after = [];
    const { after: _, ...asked } = this.asked();
    setQuery(Object.fromEntries(Object.entries(asked).map(([name, value]) => [this.prefix + name, value])));
    return this.show();
  }

  async show() {
    const asking = ++this.#asking;
    this.#stop?.abort();
    this.#stop = new AbortController();
    const signal = AbortSignal.any([this.#stop.signal, this.#place.signal]);
    try {
      const answer = await this.#read(this.asked(), signal);
      if (asking !== this.#asking || this.#place.signal.aborted) return;
      tell(this.#notice, answer.notice);
      this.#put(answer);
    } catch (error) {
      if (error.name === "AbortError" || asking !== this.#asking) return;
      tell(this.#notice, error);
    } finally {
      if (asking === this.#asking) this.#scroll.setAttribute("aria-busy", "false");
    }
  }

  #put({ rows, total, next }) {
    for (const cell of this.#table.tHead.rows[0].cells) {
      if (!cell.dataset.name) continue;
      const down = this.#sort === `-${cell.dataset.name}`, up = this.#sort === cell.dataset.name;
      cell.ariaSort = up ? "ascending" : down ? "descending" : null;
    }
    putRows(this.#table.tBodies[0], this.#columns, rows, this.#key);
    const searched = this.#query?.value.trim() || this.#filters.some(([, choice]) => (choice.localName === "select" ? choice.selectedIndex > 0 : choice.value.trim()));
    this.#table.hidden = !rows.length;
    this.#none.hidden = rows.length > 0;
    if (!rows.length) this.#none.replaceChildren(searched ? empty("Nothing fits the search.", "Change it or take it away.") : this.#nothing);
    if (total !== undefined && total !== null) this.#count.textContent = `${number(total)} ${searched ? "found" : "in all"}`;
    const before = this.#after.length > 0;
    this.#pager.hidden = !before && !next;
    const step = (word, possible, work) => h("button", { type: "button", disabled: !possible, onclick: work }, word);
    const focused = document.activeElement?.closest?.(".pager") === this.#pager ? [...this.#pager.children].indexOf(document.activeElement) : -1;
    this.#pager.replaceChildren(
      step("‹ Back", before, () => { this.#after.pop(); this.show(); }),
      step("More ›", next, () => { this.#after.push(next); this.show(); }),
      h("span", {}, `page ${number(this.#after.length + 1)}${total ? ` of ${number(Math.max(1, Math.ceil(total / PAGE)))}` : ""}`));
    if (focused >= 0) (this.#pager.children[focused].disabled ? this.#pager.querySelector("button:enabled") : this.#pager.children[focused])?.focus();
  }
}
