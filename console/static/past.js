// The range that the page shows, and the charts over it.

import { call } from "./api.js";
import { every, h, tell } from "./dom.js";
import { short } from "./format.js";
import { RangeChart, rate } from "./range_chart.js";

// A range that ends now goes on by itself at this pace.
const REFRESH_MS = 30_000;
const SETTLED_S = 3;
const WIDTH_MIN = 10;
const WIDTH_MAX = 10 * 366 * 86_400;
const LINES = 8;
const BACK_MAX = 50;

const EMPTY = {
  latency: "no latency was measured in this range",
  backlog: "no group's backlog was measured in this range",
  talkers: "no devices were counted in this range",
};

const now = () => Math.floor(Date.now() / 1000);
const ms = (n) => (n >= 10_000 ? `${short(Math.round(n / 1000))}\u2009s` : `${short(Math.round(n))}\u2009ms`);

function steps(answer) {
  const x = [];
  for (let second = answer.first - answer.first % answer.step_seconds; second < answer.until; second += answer.step_seconds) x.push(second);
  return x;
}

export class Past {
  #range; #before = []; #asked = 0;
  #charts; #at; #signal;

  // `at(id)` finds the page's elements.
  constructor(at, signal) {
    this.#at = at;
    this.#signal = signal;
    const zoom = (first, until) => this.go(first, until);
    const chart = (name, show) => new RangeChart(at(`${name}-chart`), at(`${name}-legend`), signal, show, zoom);
    this.#charts = { history: chart("history", rate), latency: chart("latency", ms), backlog: chart("backlog", short) };
    this.#range = { first: now() - 3600, until: now(), width: 3600 };
    this.#buttons();
    every(REFRESH_MS, signal, () => (this.#range.width ? this.#show() : null));
  }

  // Show from `first` to before `until`; `width` instead: the last so many seconds, and on as time goes on.
  go(first, until, width = null) {
    this.#before.push(this.#range);
    if (this.#before.length > BACK_MAX) this.#before.shift();
    this.#set(first, until, width);
  }

  #set(first, until, width) {
    const missing = Math.max(0, WIDTH_MIN - (until - first));
    first -= Math.ceil(missing / 2);
    until = Math.min(Math.max(until, first + WIDTH_MIN), Math.max(first, 0) + WIDTH_MAX);
    this.#range = { first: Math.max(0, first), until, width };
    this.#show();
  }

  #buttons() {
    const at = this.#at;
    for (const button of at("history-range").querySelectorAll("button")) {
      button.addEventListener("click", () => { const width = Number(button.dataset.seconds); this.go(now() - width, now(), width); });
    }
    const moved = (change) => () => {
      const { first, until } = this.#range, width = until - first, [left, right] = change(width);
      this.go(Math.floor(first + left), Math.ceil(until + right));
    };
    at("history-in").addEventListener("click", moved((width) => [width / 4, -width / 4]));
    at("history-out").addEventListener("click", moved((width) => [-width / 2, width / 2]));
    at("history-earlier").addEventListener("click", moved((width) => [-width / 2, -width / 2]));
    at("history-later").addEventListener("click", moved((width) => [width / 2, width / 2]));
    at("history-back").addEventListener("click", () => {
      const range = this.#before.pop();
      if (range) this.#set(range.first, range.until, range.width);
    });
    at("moments").addEventListener("submit", (event) => {
      event.preventDefault();
      const first = new Date(at("history-from").value).getTime() / 1000, until = new Date(at("history-to").value).getTime() / 1000;
      if (!(first < until)) return tell(at("history-notice"), "from must lie before to");
      this.go(first, until);
    });
  }

  async #show() {
    const range = this.#range, at = this.#at;
    if (range.width) { range.until = now(); range.first = range.until - range.width; }
    const asked = ++this.#asked, query = `from=${range.first}&to=${range.until}`;
    for (const button of at("history-range").querySelectorAll("button")) button.setAttribute("aria-pressed", String(Number(button.dataset.seconds) === range.width));
    at("history-back").disabled = !this.#before.length;
    for (const [id, second] of [["history-from", range.first], ["history-to", range.until]]) {
      const local = new Date(second * 1000);
      if (document.activeElement !== at(id)) at(id).value = new Date(local - local.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
    }
    for (const name of ["history", "latency", "backlog", "talkers"]) at(`${name}-csv`).href = `/api/v1/${name}?${query}&format=csv`;
    at("history").setAttribute("aria-busy", "true");
    for (const [name, show] of [["history", history], ["latency", latency], ["backlog", backlog], ["talkers", talkers]]) {
      try {
        const answer = await call(`/api/v1/${name}?${query}`, { signal: this.#signal });
        // Another range was chosen meanwhile.
        if (asked !== this.#asked) return;
        tell(at(`${name}-notice`), answer.notice ?? (answer.rows?.length === 0 ? EMPTY[name] : null));
        show(answer, this.#charts[name], at);
      } catch (error) {
        if (asked !== this.#asked || this.#signal.aborted) return;
        tell(at(`${name}-notice`), error);
      } finally {
        if (name === "history" && asked === this.#asked) at("history").setAttribute("aria-busy", "false");
      }
    }
  }
}

function history(answer, chart, at) {
  // A step that has not ended, or whose counts are still being written, is no dip.
  const x = steps(answer), step = answer.step_seconds, edge = now() - SETTLED_S;
  const each = (messages) => messages.map((n, i) => (x[i] + step > edge ? null : n / step));
  const lines = answer.topics.map(({ topic, messages }) => ({ label: topic, values: each(messages) }));
  if (answer.others) lines.push({ label: "others", values: each(answer.others.messages), rest: true });
  at("history-source").textContent = answer.table ? `${answer.table}, ${span(answer.step_seconds)} a point` : "";
  at("history-chart").dataset.step = answer.step_seconds;
  at("history-chart").dataset.first = answer.first;
  at("history-chart").dataset.until = answer.until;
  if (!lines.length) {
    chart.clear();
    if (!answer.notice) tell(at("history-notice"), "no messages were counted in this range");
    return;
  }
  chart.draw({ x, lines });
}

function span(seconds) {
  const units = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, word] = units.find(([size]) => seconds % size === 0);
  return `${seconds / size}\u2009${word}`;
}

// Rows of [time, …] as one value for each step; null where there is none.
function placed(x, rows, step, pick) {
  const found = new Map(rows.map((row) => [Math.floor(Date.parse(row[0]) / 1000 / step) * step, pick(row)]));
  return x.map((second) => found.get(second) ?? null);
}

function latency(answer, chart) {
  if (!answer.rows.length) return chart.clear();
  const x = steps(answer);
  chart.draw({ x, lines: ["p50", "p95", "p99"].map((label, i) => ({ label, values: placed(x, answer.rows, answer.step_seconds, (row) => row[2 + i]) })) });
}

function backlog(answer, chart) {
  if (!answer.rows.length) return chart.clear();
  const groups = new Map();
  for (const row of answer.rows) {
    if (!groups.has(row[1])) groups.set(row[1], []);
    groups.get(row[1]).push(row);
  }
  const most = ([, rows]) => rows.reduce((top, row) => Math.max(top, row[2]), 0);
  const shown = [...groups].sort((a, b) => most(b) - most(a)).slice(0, LINES), x = steps(answer);
  chart.draw({ x, lines: shown.map(([label, rows]) => ({ label, values: placed(x, rows, answer.step_seconds, (row) => row[2]) })) });
}

function talkers(answer, _chart, at) {
  at("talkers").tBodies[0].replaceChildren(...answer.rows.map(([client, messages]) => h("tr", {}, h("td", {}, client), h("td.n", {}, short(messages)))));
  at("talkers").hidden = !answer.rows.length;
}
