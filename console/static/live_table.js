// Tables that change each second: rows are made once and kept, only texts that changed are written.

import { h, svg, write } from "./dom.js";
import { dotted, table } from "./rows.js";

// `columns` are { title, class, fill(cell, row) }; `id(row)` is a row's stable id, and its key.
export class LiveTable {
  #columns; #id; #none; #rows = new Map(); #body;

  constructor(id, label, columns, rowId, none) {
    this.#columns = columns;
    this.#id = rowId;
    this.#none = none;
    this.element = table(label, columns, { id });
    this.#body = this.element.tBodies[0];
  }

  show(rows) {
    if (!rows.length) return this.#empty();
    if (!this.#rows.size) this.#body.replaceChildren();
    const gone = new Set(this.#rows.keys());
    let place = this.#body.firstElementChild;
    for (const row of rows) {
      const id = this.#id(row);
      gone.delete(id);
      let line = this.#rows.get(id);
      if (!line) this.#rows.set(id, line = h("tr", { id }, this.#columns.map((column) => h(`td${dotted(column)}`))));
      this.#columns.forEach((column, i) => column.fill(line.cells[i], row));
      if (line !== place) this.#body.insertBefore(line, place);
      else place = place.nextElementSibling;
    }
    for (const id of gone) { this.#rows.get(id).remove(); this.#rows.delete(id); }
  }

  #empty() {
    this.#rows.clear();
    this.#body.replaceChildren(h("tr", {}, h("td.none", { colspan: this.#columns.length }, this.#none)));
  }
}

export const text = (title, pick, name) => ({ title, class: name, fill: (cell, row) => write(cell, pick(row)) });

export const known = (value, show) => (value === undefined || value === null ? "–" : show(value));

export function link(title, pick, to) {
  return { title, fill: (cell, row) => {
    const made = cell.firstElementChild ?? cell.appendChild(h("a", { href: to(row) }));
    write(made, pick(row));
  } };
}

export function fillState(cell, word, level, why = "") {
  const mark = cell.firstElementChild ?? cell.appendChild(h("span.state"));
  mark.dataset.state = level;
  mark.title = why;
  write(mark, word);
}

export function fillSpark(cell, values) {
  let path = cell.querySelector("path");
  if (!path) {
    path = svg("path", { "vector-effect": "non-scaling-stroke" });
    cell.append(svg("svg", { viewBox: "0 0 130 28", preserveAspectRatio: "none", "aria-hidden": "true" }, path));
  }
  const most = Math.max(1, ...values), step = 130 / Math.max(1, values.length - 1);
  path.setAttribute("d", "M" + values.map((n, i) => `${(i * step).toFixed(1)} ${(26 - 24 * n / most).toFixed(1)}`).join("L"));
}
