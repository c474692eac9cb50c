// What happens now: one stream feeds all of it.

import { may } from "../account.js";
import { cluster as chosen } from "../address.js";
import { Chart } from "../chart.js";
import { h, notice, tell, write } from "../dom.js";
import { bytes, clock, number, short, since } from "../format.js";
import { fillSpark, fillState, known, link, LiveTable, text } from "../live_table.js";
import { reloadConfiguration } from "../reload_dialog.js";
import { Series } from "../series.js";
import { follow } from "../stream.js";

const TOPICS = 12;

export function show({ main, signal }) {
  const series = new Series();
  let overview = null, shown = null;
  const fact = (name, id) => h("div", {}, h("dt", {}, name), h("dd", { id }, "–"));
  const live = h("span.live", { id: "live", role: "status" });
  const figure = h("p.figure", { id: "tps-total", "aria-label": "Messages per second" }, "–");
  const numbers = { data: fact("Data", "fact-bytes"), peak: fact("Peak", "fact-peak"), devices: fact("Devices", "fact-devices"), stored: fact("Stored", "fact-stored") };
  const put = (name, word) => write(numbers[name].lastElementChild, word);
  const cluster = h("span.muted", { id: "cluster-name" }), time = h("span.muted.small", { id: "clock" });
  const spans = [[60, "1 min"], [300, "5 min"], [900, "15 min"]].map(([seconds, word]) => h("button", { type: "button", "aria-pressed": String(seconds === 300), onclick: ({ target }) => {
    chart.span = seconds;
    for (const other of spans) other.setAttribute("aria-pressed", String(other === target));
    chart.restyle();
  } }, word));
  const legend = h("ul.legend", { id: "legend" });
  const box = h("div.chart", { id: "tps-chart", role: "img", "aria-label": "Line chart of messages per second, one line per topic" });
  const countsNotice = notice({ id: "notice" }), clusterNotice = notice({ id: "cluster-notice" });
  const chart = new Chart(box, legend, signal);
  const counts = {};
  const heading = (name, title, ...rest) => h("div.tools", {}, h("h2", { id: `${name}-title` }, title, " ", counts[name] = h("span.count", { id: `${name}-count` })), rest);

  const topics = new LiveTable("topics", "Busiest topics", [
    link("Topic", (t) => t.topic, (t) => `/topics/${encodeURIComponent(t.topic)}`),
    { title: "Last minute", class: "spark", fill: (cell, t) => fillSpark(cell, series.line(series.topics.get(t.topic), 60)) },
    text("msg/s", (t) => number(series.rate(t.topic)), "n rate"),
    text("In", (t) => known(t.messages_in, short), "n"),
    text("Data in", (t) => known(t.bytes_in, bytes), "n wide"),
    text("Out", (t) => known(t.messages_out, short), "n wide"),
    text("Stored", (t) => known(t.messages_stored, short), "n"),
    text("Queues", (t) => known(t.write_queues, number), "n wide"),
  ], (t) => `topic-${t.topic}`, "No topics yet: the first message creates one.");
  const brokers = new LiveTable("brokers", "Brokers", [
    text("Broker", (b) => b.broker),
    { title: "State", fill: (cell, b) => fillState(cell, !b.reachable ? "unreachable" : b.writable ? "serving" : "read-only", !b.reachable ? "bad" : b.writable ? "good" : "warn", b.reason) },
    text("Cluster", (b) => b.cluster, "wide"),
    text("Address", (b) => b.address, "wide"),
    text("Room", (b) => b.room || "–", "wide"),
    text("Epoch", (b) => (b.epoch ? number(b.epoch) : "–"), "n wide"),
    text("Log", (b) => bytes(b.log_bytes), "n"),
    text("Conns", (b) => number(b.connections), "n"),
  ], (b) => `broker-${b.broker}`, "No broker has registered: start one with `holdmq broker`.");
  const gateways = new LiveTable("gateways", "Gateway workers", [
    text("Worker", (g) => g.client_id),
    text("Devices", (g) => known(g.state.connections, number), "n"),
    text("Address", (g) => g.address, "wide"),
    text("Up", (g) => since(g.connected, Date.now()), "n"),
  ], (g) => `gateway-${g.client_id}`, "No gateway is connected to a broker: start one with `holdmq gateway`.");

  const reload = may("admin") ? [h("span.spring"), h("button.small", { type: "button", id: "reload", onclick: () => reloadConfiguration((overview?.brokers ?? []).map((b) => b.broker)) }, "Reload configuration")] : [];

  main.append(
    h("header.head", {}, h("div", {}, h("h1", { tabindex: "-1" }, "Overview"), cluster), h("div.actions", {}, time, live)),
    h("section.hero", { "aria-label": "Throughput" },
      h("div", {}, figure, h("p.muted", {}, chosen() ? "messages per second, of all clusters" : "messages per second")), h("dl.facts", {}, Object.values(numbers))),
    h("section.card", { "aria-label": "Messages per second by topic" },
      h("div.chart-head", {}, legend, h("div.range", { id: "range", role: "group", "aria-label": "Time shown" }, spans)), box, countsNotice),
    clusterNotice,
    h("section.section", { "aria-labelledby": "topics-title" }, heading("topics", "Busiest topics", h("span.spring"), h("a.small", { href: "/topics" }, "All topics")), topics.element),
    h("div.pair", {},
      h("section.section", { "aria-labelledby": "brokers-title" }, heading("brokers", "Brokers", ...reload), brokers.element),
      h("section.section", { "aria-labelledby": "gateways-title" }, heading("gateways", "Gateways"), gateways.element)));

  // The big number glides from the old to the new one: a jump every second is no calm.
  function glide(target) {
    const from = shown ?? target, began = performance.now();
    shown = target;
    if (from === target || document.hidden || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      figure.textContent = number(target);
      return;
    }
    const step = (now) => {
      if (shown !== target || signal.aborted) return;
      const t = Math.min(1, (now - began) / 500), eased = 1 - (1 - t) ** 3;
      figure.textContent = number(Math.round(from + (target - from) * eased));
      if (t < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  // What the brokers list, and what was counted while they could not be asked.
  function busiest() {
    const listed = overview?.topics ?? [], names = new Set(listed.map((t) => t.topic));
    // Counts are of all clusters: those of another have no place among the topics of one.
    if (chosen()) return listed.slice(0, TOPICS);
    const counted = [...series.topics.keys()].filter((name) => !names.has(name)).map((topic) => ({ topic }));
    return [...listed, ...counted].sort((a, b) => (b.messages_in ?? -1) - (a.messages_in ?? -1) || (a.topic < b.topic ? -1 : 1)).slice(0, TOPICS);
  }

  follow(signal, {
    counts(answer, isWhole) {
      series.take(answer, isWhole);
      tell(countsNotice, answer.notice);
      glide(answer.current.messages);
      put("data", `${bytes(answer.current.bytes)}/s`);
      put("peak", short(series.peak(chart.span)));
      time.textContent = clock(series.now);
      chart.draw(series);
      topics.show(busiest());
      document.title = answer.current.messages ? `${short(answer.current.messages)} msg/s · HoldMQ` : "Overview · HoldMQ";
    },
    cluster(answer) {
      overview = answer;
      tell(clusterNotice, answer.notice);
      topics.show(busiest());
      brokers.show(answer.brokers);
      gateways.show(answer.gateways);
      for (const name of Object.keys(counts)) write(counts[name], answer.counts[name] ? number(answer.counts[name]) : "");
      put("devices", answer.gateways.length ? short(answer.gateways.reduce((sum, g) => sum + (g.state.connections ?? 0), 0)) : "–");
      put("stored", answer.topics.length ? short(answer.topics.reduce((sum, t) => sum + t.messages_stored, 0)) : "–");
      write(cluster, [...new Set(answer.brokers.map((b) => b.cluster))].sort().join(", "));
    },
    live(state, word) {
      live.dataset.state = state;
      write(live, word);
    },
  });
}
