// The page: one stream feeds all of it.

import { call, notice } from "./api.js";
import { Chart } from "./chart.js";
import { bytes, clock, number, short } from "./format.js";
import { Series } from "./series.js";
import { tables } from "./tables.js";
import { themeSwitch } from "./theme_switch.js";

// The page asks for everything again at this pace, for counts that came later than events repeat.
const REREAD_MS = 30_000;
// Without an event for this long the stream is lost, whatever the browser thinks.
const SILENT_MS = 6_000;

const at = (id) => document.getElementById(id);
const series = new Series();
const chart = new Chart(at("tps-chart"), at("legend"));
const lists = tables(series);
let overview = null;
let heard = 0;
let shown = null;

function live(state, word) {
  at("live").dataset.state = state;
  if (at("live").textContent !== word) at("live").textContent = word;
}

// The big number glides from the old to the new one: a jump every second is no calm.
function glide(target) {
  const figure = at("tps-total"), from = shown ?? target, began = performance.now();
  shown = target;
  if (from === target || document.hidden || matchMedia("(prefers-reduced-motion: reduce)").matches) {
    figure.textContent = number(target);
    return;
  }
  const step = (now) => {
    if (shown !== target) return;
    const t = Math.min(1, (now - began) / 500), eased = 1 - (1 - t) ** 3;
    figure.textContent = number(Math.round(from + (target - from) * eased));
    if (t < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function showTps(answer) {
  notice("notice", answer.notice);
  glide(answer.current.messages);
  at("fact-bytes").textContent = `${bytes(answer.current.bytes)}/s`;
  at("fact-peak").textContent = short(series.peak(chart.span));
  at("clock").textContent = clock(series.now);
  chart.draw(series);
  lists.topics.show(topics());
  document.title = answer.current.messages ? `${short(answer.current.messages)} msg/s · HoldMQ` : "HoldMQ";
}

// What the brokers list, and what was counted while they could not be asked.
function topics() {
  const listed = overview?.topics ?? [], names = new Set(listed.map((t) => t.topic));
  const counted = [...series.topics.keys()].filter((name) => !names.has(name)).map((topic) => ({ topic }));
  return [...listed, ...counted].sort((a, b) => (b.messages_in ?? -1) - (a.messages_in ?? -1) || (a.topic < b.topic ? -1 : 1));
}

function showCluster(answer) {
  overview = answer;
  notice("cluster-notice", answer.notice);
  lists.topics.show(topics());
  for (const name of ["brokers", "gateways", "connections"]) lists[name].show(answer[name]);
  for (const [name, count] of Object.entries(answer.counts)) at(`${name}-count`).textContent = count ? number(count) : "";
  const devices = answer.gateways.reduce((sum, g) => sum + (g.state.connections ?? 0), 0);
  at("fact-devices").textContent = answer.gateways.length ? short(devices) : "–";
  at("fact-stored").textContent = answer.topics.length === 0 ? "–" : short(answer.topics.reduce((sum, t) => sum + t.messages_stored, 0));
  at("cluster-name").textContent = answer.brokers[0]?.cluster ?? "";
}

async function reread() {
  try {
    const answer = await call("/api/v1/tps?seconds=900&top=24");
    series.take(answer, true);
    showTps(answer);
  } catch (error) {
    live("lost", "no connection");
    console.warn("the counts could not be read:", error);
  }
}

function listen() {
  const source = new EventSource("/api/v1/stream");
  source.addEventListener("tps", (event) => {
    heard = Date.now();
    live("live", "live");
    const answer = JSON.parse(event.data);
    series.take(answer, false);
    showTps(answer);
  });
  source.addEventListener("cluster", (event) => showCluster(JSON.parse(event.data)));
  source.addEventListener("open", reread);
  source.addEventListener("error", () => {
    live("lost", "no connection");
    // The browser tries again by itself, except after an answer that was no stream.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  });
}

for (const button of at("range").querySelectorAll("button")) {
  button.addEventListener("click", () => {
    chart.span = Number(button.dataset.seconds);
    for (const other of at("range").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    chart.restyle();
  });
}

themeSwitch(at("theme"), () => chart.restyle());

setInterval(reread, REREAD_MS);
setInterval(() => { if (heard && Date.now() - heard > SILENT_MS) live("lost", "no connection"); }, 1000);
listen();
