// Rows of a table that is read again and again: one that says the same stays, with its focus and what is selected.

import { h } from "./dom.js";

// `columns` are { title, class, cell(row) }; `cell` answers text, an element, or several.
export function table(label, columns, attributes = {}) {
  return h("table", { "aria-label": label, ...attributes },
    h("thead", {}, h("tr", {}, columns.map((column) => h(`th${dotted(column)}`, { scope: "col" }, column.title || h("span.sr", {}, column.name ?? ""))))), h("tbody"));
}

export const dotted = (column) => (column.class ? `.${column.class.replaceAll(" ", ".")}` : "");

export function putRows(body, columns, rows, key) {
  const known = new Map([...body.rows].map((line) => [line.dataset.key, line]));
  let place = body.firstElementChild;
  for (const row of rows) {
    const id = String(key(row)), said = JSON.stringify(row);
    let line = known.get(id);
    known.delete(id);
    if (line?.said !== said) {
      const made = h("tr", { "data-key": id }, columns.map((column) => h(`td${dotted(column)}`, {}, column.cell(row))));
      made.said = said;
      const held = line?.contains(document.activeElement) ? [...line.querySelectorAll("a, button, input")].indexOf(document.activeElement) : -1;
      if (line === place && line) place = made;
      line?.replaceWith(made);
      line = made;
      if (held >= 0) line.querySelectorAll("a, button, input")[held]?.focus();
    }
    if (line === place) place = place.nextElementSibling;
    else body.insertBefore(line, place);
  }
  for (const line of known.values()) line.remove();
}
