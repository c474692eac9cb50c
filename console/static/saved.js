// Saved queries: chosen into the SQL box, saved from it, deleted.

import { call, notice } from "./api.js";

const at = (id) => document.getElementById(id);
const path = (name) => `/api/v1/queries/${encodeURIComponent(name)}`;

export class Saved {
  #queries = new Map();

  constructor() {
    at("queries").addEventListener("change", () => this.#chosen());
    at("query-delete").addEventListener("click", () => this.#change(() => call(path(at("queries").value), { method: "DELETE" }), ""));
    at("query-save").addEventListener("submit", (event) => {
      event.preventDefault();
      const name = at("query-name").value.trim(), sql = at("sql-text").value;
      this.#change(() => call(path(name), { method: "PUT", body: { sql } }), name);
    });
    this.#read("").catch((error) => notice("sql-notice", error.message));
  }

  async #change(work, name) {
    try {
      await work();
      notice("sql-notice", null);
      await this.#read(name);
    } catch (error) {
      notice("sql-notice", error.message);
    }
  }

  async #read(name) {
    const { queries } = await call("/api/v1/queries");
    this.#queries = new Map(queries.map((query) => [query.name, query]));
    const group = (label, ready) => {
      const found = queries.filter((query) => query.ready_made === ready), box = document.createElement("optgroup");
      box.label = label;
      box.append(...found.map((query) => new Option(query.name, query.name)));
      return found.length ? [box] : [];
    };
    at("queries").replaceChildren(new Option("–", ""), ...group("saved", false), ...group("ready-made", true));
    at("queries").value = this.#queries.has(name) ? name : "";
    this.#deletable();
  }

  #chosen() {
    const query = this.#queries.get(at("queries").value);
    if (query) {
      at("sql-text").value = query.sql;
      at("query-name").value = query.ready_made ? "" : query.name;
    }
    this.#deletable();
  }

  #deletable() {
    const query = this.#queries.get(at("queries").value);
    at("query-delete").disabled = !query || query.ready_made;
  }
}
