// The chart: one line per topic over uPlot, redrawn once a second.

import { colour, css, faded } from "./colours.js";
import { clock, number, short } from "./format.js";
import { fill, keepFitting, legend } from "./legend.js";

const MOST = 8;

export class Chart {
  #box; #legend; #plot = null; #names = ""; #slots = new Map(); #shown = null;
  span = 300;

  constructor(box, legend, signal) {
    this.#box = box;
    this.#legend = legend;
    keepFitting(box, signal, () => this.#plot?.setSize(this.#size()), () => this.restyle());
  }

  #size() {
    return { width: this.#box.clientWidth, height: this.#box.clientHeight };
  }

  // A topic keeps its colour for as long as the page is open.
  #slot(name) {
    if (!this.#slots.has(name)) {
      const taken = new Set(this.#slots.values());
      let slot = 0;
      while (slot < MOST - 1 && taken.has(slot)) slot++;
      this.#slots.set(name, taken.has(slot) ? this.#slots.size % MOST : slot);
    }
    return this.#slots.get(name);
  }

  restyle() {
    this.#names = "";
    if (this.#shown) this.draw(this.#shown);
  }

  draw(series) {
    this.#shown = series;
    const { x, names, lines, others } = series.columns(this.span, MOST);
    const all = others ? [...names, null] : names;
    const data = [x, ...lines, ...(others ? [others] : [])];
    if (data.length === 1) data.push(x.map(() => 0));
    const key = JSON.stringify(all);
    if (this.#plot === null || key !== this.#names) {
      this.#names = key;
      this.#make(all.length ? all : [""], data);
    } else {
      this.#plot.setData(data);
    }
    this.#values(this.#plot.cursor.idx ?? null);
  }

  #make(names, data) {
    this.#plot?.destroy();
    const muted = colour("--muted"), line = faded(colour("--line"), 0.7), font = `12px ${css("--sans")}`;
    const lines = names.map((name) => {
      const stroke = name === "" ? muted : colour(name === null ? "--s8" : `--s${this.#slot(name)}`);
      return { label: name ?? "others", stroke, width: 1.75, fill: this.#fill(stroke), paths: uPlot.paths.spline(), points: { show: false } };
    });
    const axis = { stroke: muted, font, ticks: { show: false }, grid: { stroke: line, width: 1 } };
    this.#plot = new uPlot({
      ...this.#size(),
      legend: { show: false },
      padding: [10, 8, 0, 0],
      cursor: { y: false, points: { size: 8 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, _min, max) => [0, Math.max(5, max * 1.12)] } },
      axes: [
        { ...axis, size: 30, space: 80, incrs: [5, 10, 15, 30, 60, 120, 300], grid: { show: false }, values: (_, at, _axis, _space, step) => at.map((s) => clock(s).slice(0, step < 60 ? 8 : 5)) },
        { ...axis, size: 52, space: 54, values: (_, at) => at.map((n) => (n % 1 ? "" : short(n))) },
      ],
      series: [{}, ...lines],
      hooks: { setCursor: [(plot) => this.#values(plot.cursor.idx ?? null)] },
    }, data, this.#box);
    legend(this.#legend, lines.filter(({ label }) => label !== ""));
  }

  #fill(stroke) {
    return (plot) => {
      const fade = plot.ctx.createLinearGradient(0, plot.bbox.top, 0, plot.bbox.top + plot.bbox.height);
      fade.addColorStop(0, faded(stroke, 0.2));
      fade.addColorStop(1, faded(stroke, 0));
      return fade;
    };
  }

  // The legend's numbers: under the pointer, or the newest.
  #values(index) {
    const plot = this.#plot;
    if (!plot) return;
    const at = index ?? plot.data[0].length - 1;
    fill(this.#legend, (i) => number(plot.data[i + 1]?.[at] ?? 0));
  }
}
