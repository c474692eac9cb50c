// Lines over a range of the past, on uPlot; dragging over the chart asks for a narrower range.

import { colour, css, faded } from "./colours.js";
import { short, ticks } from "./format.js";
import { fill, keepFitting, legend } from "./legend.js";

const SLOTS = 8;

export class RangeChart {
  #box; #legend; #show; #zoom; #plot = null; #drawn = null; #key = "";

  // `show(value)` writes a number; `zoom(first, until)` is called with the seconds that were dragged over.
  constructor(box, legend, signal, show, zoom = null) {
    this.#box = box;
    this.#legend = legend;
    this.#show = show;
    this.#zoom = zoom;
    keepFitting(box, signal, () => this.#plot?.setSize(this.#size()), () => this.restyle());
  }

  #size() {
    return { width: this.#box.clientWidth, height: this.#box.clientHeight };
  }

  restyle() {
    this.#key = "";
    if (this.#drawn) this.draw(this.#drawn);
  }

  clear() {
    this.#plot?.destroy();
    this.#plot = this.#drawn = null;
    this.#box.hidden = true;
    this.#legend.replaceChildren();
  }

  // `x` are seconds, `lines` { label, values, rest }: `rest` is what has no name of its own.
  draw({ x, lines }) {
    const key = JSON.stringify([lines.map(({ label }) => label), x.length <= 3]);
    if (this.#plot && this.#key === key) {
      this.#drawn = { x, lines };
      this.#plot.setData([x, ...lines.map((line) => line.values)]);
      return this.#values(this.#plot.cursor.idx ?? null);
    }
    this.clear();
    this.#box.hidden = false;
    this.#drawn = { x, lines };
    this.#key = key;
    const muted = colour("--muted"), grid = faded(colour("--line"), 0.7), font = `12px ${css("--sans")}`;
    const strokes = lines.map((line, i) => colour(line.rest ? "--s8" : `--s${i % SLOTS}`));
    const axis = { stroke: muted, font, ticks: { show: false }, grid: { stroke: grid, width: 1 } };
    const few = x.length <= 3;
    this.#plot = new uPlot({
      ...this.#size(),
      legend: { show: false },
      padding: [10, 8, 0, 0],
      cursor: { y: false, points: { size: 8 }, drag: { x: this.#zoom !== null, y: false, setScale: false } },
      scales: { x: { time: true }, y: { range: (_, _min, max) => [0, Math.max(1, (max ?? 0) * 1.12)] } },
      axes: [{ ...axis, size: 34, space: 90, grid: { show: false }, values: (_, at, _axis, _space, step) => ticks(at, step) }, { ...axis, size: 56, space: 44, values: (_, at) => at.map((n) => (n % 1 && n > 10 ? "" : this.#show(n))) }],
      series: [{}, ...lines.map((line, i) => ({ label: line.label, stroke: strokes[i], width: 1.6, fill: lines.length === 1 ? faded(strokes[i], 0.12) : undefined, points: { show: few } }))],
      hooks: { setCursor: [(plot) => this.#values(plot.cursor.idx ?? null)], setSelect: [(plot) => this.#selected(plot)] },
    }, [x, ...lines.map((line) => line.values)], this.#box);
    legend(this.#legend, lines.map(({ label }, i) => ({ label, stroke: strokes[i] })));
    this.#values(null);
  }

  #selected(plot) {
    const { left, width } = plot.select;
    if (width < 3) return;
    const first = Math.floor(plot.posToVal(left, "x")), until = Math.ceil(plot.posToVal(left + width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#zoom?.(first, until);
  }

  // The legend's numbers: under the pointer, or the largest of the range.
  #values(index) {
    if (!this.#plot || !this.#drawn) return;
    const words = this.#drawn.lines.map(({ values }) => {
      if (index !== null) return values[index] == null ? "–" : this.#show(values[index]);
      const known = values.filter((n) => n != null);
      return known.length ? `max ${this.#show(known.reduce((most, n) => Math.max(most, n), 0))}` : "–";
    });
    fill(this.#legend, (i) => words[i]);
  }
}

export const rate = (n) => (n >= 10 || n === 0 ? short(Math.round(n)) : n.toFixed(n >= 1 ? 1 : 2));
