// Saved queries: chosen into the SQL box, saved from it, deleted.

import { call, path } from "./api.js";
import { h, tell } from "./dom.js";

const place = (name) => path`/api/v1/queries/${name}`;

export class Saved {
  #queries = new Map(); #at;

  // `at(id)` finds the page's elements.
  constructor(at) {
    this.#at = at;
    at("queries").addEventListener("change", () => this.#chosen());
    at("query-delete").addEventListener("click", () => this.#change(() => call(place(at("queries").value), { method: "DELETE" }), ""));
    at("query-save").addEventListener("submit", (event) => {
      event.preventDefault();
      const name = at("query-name").value.trim(), sql = at("sql-text").value;
      this.#change(() => call(place(name), { method: "PUT", body: { sql } }), name);
    });
    this.#read("").catch((error) => tell(at("sql-notice"), error));
  }

  async #change(work, name) {
    try {
      await work();
      tell(this.#at("sql-notice"), null);
      await this.#read(name);
    } catch (error) {
      tell(this.#at("sql-notice"), error);
    }
  }

  async #read(name) {
    const { queries } = await call("/api/v1/queries");
    this.#queries = new Map(queries.map((query) => [query.name, query]));
    const at = this.#at, group = (label, ready) => {
      const found = queries.filter((query) => query.ready_made === ready);
      return found.length ? [h("optgroup", { label }, found.map(({ name: each }) => h("option", { value: each }, each)))] : [];
    };
    at("queries").replaceChildren(new Option("–", ""), ...group("saved", false), ...group("ready-made", true));
    at("queries").value = this.#queries.has(name) ? name : "";
    this.#deletable();
  }

  #chosen() {
    const at = this.#at, query = this.#queries.get(at("queries").value);
    if (query) {
      at("sql-text").value = query.sql;
      at("query-name").value = query.ready_made ? "" : query.name;
    }
    this.#deletable();
  }

  #deletable() {
    const at = this.#at, query = this.#queries.get(at("queries").value);
    at("query-delete").disabled = !query || query.ready_made;
  }
}
