// The analysts' page: the past by ranges, and SQL.

import { may } from "../account.js";
import { h, head, notice } from "../dom.js";
import { Past } from "../past.js";
import { Saved } from "../saved.js";
import { Sql } from "../sql.js";

const RANGES = [[3600, "1 h"], [21_600, "6 h"], [86_400, "24 h"], [604_800, "7 d"], [2_592_000, "30 d"], [31_536_000, "1 y"]];

const button = (id, word, attributes = {}) => h("button", { id, type: "button", ...attributes }, word);
const csv = (name, title, kind = "a") => h(kind, { id: `${name}-csv`, href: `/api/v1/${name}?format=csv`, download: `holdmq-${name}.csv`, "aria-label": `${title}, as CSV` }, "CSV");
const legend = (name) => h("ul.legend", { id: `${name}-legend` });
const chart = (name, label, kind = "div.chart.low") => h(kind, { id: `${name}-chart`, role: "img", "aria-label": label });
const told = (name) => notice({ id: `${name}-notice` });

function report(name, title, ...parts) {
  return h("section.section", { "aria-labelledby": `${name}-title` },
    h("div.tools", {}, h("h2", { id: `${name}-title` }, title), h("span.spring"), csv(name, title, "a.small")), parts, told(name));
}

export function show({ main, signal }) {
  main.append(
    head("Analysis", { lead: "The past by any range, and SQL over the tables of the statistics job." }),
    h("section", { id: "history", "aria-labelledby": "history-title" },
      h("form.tools", { id: "moments" },
        h("h2", { id: "history-title" }, "Messages per second, by topic"), h("span.line"),
        h("div.range", { id: "history-range", role: "group", "aria-label": "Range shown" },
          RANGES.map(([seconds, word]) => h("button", { type: "button", "data-seconds": seconds, "aria-pressed": String(seconds === 3600) }, word))),
        h("label", {}, "from ", h("input", { id: "history-from", type: "datetime-local", step: "1", required: true })),
        h("label", {}, "to ", h("input", { id: "history-to", type: "datetime-local", step: "1", required: true })),
        h("button", { id: "history-show", type: "submit" }, "Show")),
      h("div.card", {},
        h("div.chart-head", {}, legend("history"),
          h("div.range", { role: "group", "aria-label": "Zoom" },
            button("history-back", "Back", { disabled: true, title: "The range before" }),
            button("history-in", "+", { "aria-label": "Zoom in" }), button("history-out", "−", { "aria-label": "Zoom out" }),
            button("history-earlier", "‹", { "aria-label": "Earlier" }), button("history-later", "›", { "aria-label": "Later" }),
            csv("history", "Messages per second", "a.button"))),
        chart("history", "Line chart of messages per second over the range, one line per topic", "div.chart"),
        told("history"), h("p.muted.small", { id: "history-source" }))),
    h("div.pair", {},
      report("latency", "Latency, device to log", legend("latency"), chart("latency", "Line chart of latency percentiles")),
      report("backlog", "Backlog by group", legend("backlog"), chart("backlog", "Line chart of messages that wait, one line per group"))),
    report("talkers", "Top talkers", h("table", { id: "talkers" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Client"), h("th.n", { scope: "col" }, "Messages"))), h("tbody"))),
    h("section.section", { id: "sql", "aria-labelledby": "sql-title" },
      h("div.tools", {},
        h("h2", { id: "sql-title" }, "SQL"), h("span.spring"),
        h("label", {}, "query ", h("select", { id: "queries" }, h("option", { value: "" }, "–"))),
        button("query-delete", "Delete", { disabled: true, hidden: !may("operator") }),
        h("form.tools", { id: "query-save", hidden: !may("operator") },
          h("label", {}, "name ", h("input", { id: "query-name", maxlength: "80", required: true, autocomplete: "off" })), h("button", { type: "submit" }, "Save"))),
      h("textarea", { id: "sql-text", rows: "7", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-label": "SQL statement", "aria-describedby": "sql-hint" }),
      h("div.tools.below", {},
        h("button.primary", { id: "sql-run", type: "button" }, "Run"), button("sql-stop", "Stop", { hidden: true }), button("sql-csv", "CSV", { disabled: true }),
        h("span.muted.small", { id: "sql-status", role: "status" }), h("span.spring"),
        h("span.muted.small.wide", { id: "sql-hint" }, "DuckDB’s SELECT over the job’s tables; Ctrl+Enter runs it")),
      h("p.notice", { id: "sql-notice", role: "alert", hidden: true }),
      h("div.scroll.card", { id: "sql-scroll", tabindex: "0", role: "region", "aria-label": "Result", hidden: true }, h("table", { id: "sql-result" }, h("thead"), h("tbody")))));
  const at = (id) => main.querySelector(`#${id}`);
  new Past(at, signal);
  new Sql(at, signal);
  new Saved(at);
}
