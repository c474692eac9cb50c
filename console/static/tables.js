// The tables: rows are made once and kept, only texts that changed are written.

import { bytes, number, short, since } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function write(cell, text) {
  if (cell.textContent !== text) cell.textContent = text;
}

// `columns` are { class, fill(cell, row) }; `id(row)` is a row's stable id, and its key.
class Table {
  #body; #columns; #id; #none; #rows = new Map();

  constructor(table, columns, id, none) {
    this.#body = table.tBodies[0];
    this.#columns = columns;
    this.#id = id;
    this.#none = none;
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
      if (!line) this.#rows.set(id, line = this.#line(id));
      this.#columns.forEach((column, i) => column.fill(line.cells[i], row));
      if (line !== place) this.#body.insertBefore(line, place);
      else place = place.nextElementSibling;
    }
    for (const id of gone) { this.#rows.get(id).remove(); this.#rows.delete(id); }
  }

  #line(id) {
    const line = document.createElement("tr");
    line.id = id;
    for (const column of this.#columns) line.insertCell().className = column.class ?? "";
    return line;
  }

  #empty() {
    this.#rows.clear();
    const line = document.createElement("tr"), cell = line.insertCell();
    cell.colSpan = this.#columns.length;
    cell.className = "none";
    cell.textContent = this.#none;
    this.#body.replaceChildren(line);
  }
}

const text = (pick, name) => ({ class: name, fill: (cell, row) => write(cell, pick(row)) });

const known = (value, show) => (value === undefined ? "–" : show(value));

function state(cell, word, level, why) {
  let mark = cell.firstElementChild;
  if (!mark) { mark = document.createElement("span"); mark.className = "state"; cell.append(mark); }
  mark.dataset.state = level;
  mark.title = why;
  write(mark, word);
}

function tag(cell, word) {
  let mark = cell.firstElementChild;
  if (!mark) { mark = document.createElement("span"); mark.className = "tag"; cell.append(mark); }
  write(mark, word);
}

function spark(cell, values) {
  let path = cell.querySelector("path");
  if (!path) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 130 28");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    path = document.createElementNS(SVG, "path");
    path.setAttribute("vector-effect", "non-scaling-stroke");
    svg.append(path);
    cell.append(svg);
  }
  const most = Math.max(1, ...values), step = 130 / Math.max(1, values.length - 1);
  path.setAttribute("d", "M" + values.map((n, i) => `${(i * step).toFixed(1)} ${(26 - 24 * n / most).toFixed(1)}`).join("L"));
}

export function tables(series) {
  const at = (name) => document.getElementById(name);
  const up = (row) => since(row.connected, Date.now());
  return {
    topics: new Table(at("topics"), [
      text((t) => t.topic),
      { class: "spark", fill: (cell, t) => spark(cell, series.line(series.topics.get(t.topic), 60)) },
      text((t) => number(series.rate(t.topic)), "n rate"),
      text((t) => known(t.messages_in, short), "n"),
      text((t) => known(t.bytes_in, bytes), "n wide"),
      text((t) => known(t.messages_out, short), "n"),
      text((t) => known(t.messages_stored, short), "n"),
      text((t) => known(t.write_queues, number), "n wide"),
    ], (t) => `topic-${t.topic}`, "No topics yet: the first message creates one."),
    brokers: new Table(at("brokers"), [
      text((b) => b.broker),
      { fill: (cell, b) => state(cell, !b.reachable ? "unreachable" : b.writable ? "serving" : "read-only", !b.reachable ? "bad" : b.writable ? "good" : "warn", b.reason) },
      text((b) => b.address, "wide"),
      text((b) => bytes(b.log_bytes), "n"),
      text((b) => number(b.connections), "n"),
    ], (b) => `broker-${b.broker}`, "No broker has registered."),
    gateways: new Table(at("gateways"), [
      text((g) => g.client_id),
      text((g) => known(g.state.connections, number), "n"),
      text((g) => g.address, "wide"),
      text(up, "n"),
    ], (g) => `gateway-${g.client_id}`, "No gateway is connected to a broker."),
    connections: new Table(at("connections"), [
      text((c) => c.client_id || "–"),
      { fill: (cell, c) => tag(cell, c.role) },
      text((c) => c.broker),
      text((c) => c.address, "wide"),
      text((c) => c.software || c.language, "wide"),
      text(up, "n"),
    ], (c) => `connection-${c.broker}-${c.address}`, "Nothing is connected to the brokers."),
  };
}
