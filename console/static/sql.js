// The SQL box: runs one statement at a time, shows its rows, gives them as a file.

import { call } from "./api.js";
import { h, tell } from "./dom.js";
import { number } from "./format.js";

// Rows on the page; the file has all that came.
const SHOWN = 500;

const numeric = (type) => /^(U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL)/.test(type);
const text = (value) => (value === null ? "NULL" : typeof value === "object" ? JSON.stringify(value) : String(value));

export class Sql {
  #running = null; #result = null; #at;

  // `at(id)` finds the page's elements.
  constructor(at, signal) {
    this.#at = at;
    signal.addEventListener("abort", () => this.#running?.abort());
    at("sql-run").addEventListener("click", () => this.run());
    at("sql-stop").addEventListener("click", () => this.#running?.abort());
    at("sql-csv").addEventListener("click", () => this.#save());
    at("sql-text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.run(); }
    });
  }

  async run() {
    const at = this.#at, sql = at("sql-text").value;
    if (this.#running || !sql.trim()) return;
    this.#running = new AbortController();
    this.#busy(true);
    at("sql-status").textContent = "running";
    try {
      this.#result = await call("/api/v1/sql", { method: "POST", body: { sql }, signal: this.#running.signal });
      this.#show();
    } catch (error) {
      this.#result = null;
      at("sql-scroll").hidden = true;
      at("sql-status").textContent = "";
      tell(at("sql-notice"), error.name === "AbortError" ? "stopped" : error);
    } finally {
      this.#running = null;
      this.#busy(false);
    }
  }

  #busy(is) {
    const at = this.#at;
    at("sql-run").disabled = is;
    at("sql-stop").hidden = !is;
    at("sql-csv").disabled = is || !this.#result;
  }

  #show() {
    const at = this.#at, { columns, rows, seconds } = this.#result, table = at("sql-result");
    tell(at("sql-notice"), this.#result.notice);
    const count = `${number(rows.length)} row${rows.length === 1 ? "" : "s"}`;
    at("sql-status").textContent = `${count}${rows.length > SHOWN ? `, ${SHOWN} shown` : ""}, ${Math.max(1, Math.round(seconds * 1000))} ms`;
    table.tHead.replaceChildren(h("tr", {}, columns.map(({ name, type }) => h(numeric(type) ? "th.n" : "th", { scope: "col" }, name, h("small", {}, type.toLowerCase())))));
    table.tBodies[0].replaceChildren(...rows.slice(0, SHOWN).map((row) => h("tr", {}, row.map((value, i) =>
      h(value === null ? "td.null" : numeric(columns[i].type) ? "td.n" : "td", { title: text(value) }, text(value))))));
    at("sql-scroll").hidden = false;
  }

  // The very rows that are shown, not another run of the statement.
  #save() {
    const { columns, rows } = this.#result;
    const field = (value) => {
      const found = value === null ? "" : text(value);
      // As the server's CSV: what a spreadsheet would compute is text, and a number stays one.
      const computed = typeof value === "string" && /^[=+\-@\t\r\n\uff0b\uff0d\uff1d\uff20]/.test(found)
        && !/^[+-]?(\d+(\.\d+)?([eE][+-]?\d+)?|Infinity)$/.test(found);
      const raw = computed ? `'${found}` : found;
      return /[",\r\n]/.test(raw) ? `"${raw.replaceAll('"', '""')}"` : raw;
    };
    const lines = [columns.map((column) => column.name), ...rows].map((row) => row.map(field).join(",") + "\r\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(lines, { type: "text/csv;charset=utf-8" }));
    link.download = "holdmq-query.csv";
    link.click();
    // The browser has begun to read it by then.
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }
}
