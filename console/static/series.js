// The counts that the page knows: what /api/v1/tps answered, overwritten by what each event repeats.

const KEEP = 900;
const seconds = (text) => Date.parse(text) / 1000;

export class Series {
  topics = new Map();
  total = new Map();
  now = 0;
  current = null;

  // `replace` starts over: the answer covers everything that is to be shown.
  take(answer, replace) {
    this.now = seconds(answer.now);
    this.current = answer.current;
    if (replace) { this.topics.clear(); this.total.clear(); }
    const from = this.now - answer.seconds;
    Series.#merge(this.total, answer.total, from);
    for (const [name, cells] of Object.entries(answer.topics)) {
      if (!this.topics.has(name)) this.topics.set(name, new Map());
      Series.#merge(this.topics.get(name), cells, from);
    }
    this.#forget();
  }

  static #merge(counts, cells, from) {
    for (const second of counts.keys()) if (second >= from) counts.delete(second);
    for (const cell of cells) counts.set(seconds(cell.second), cell);
  }

  #forget() {
    const oldest = this.now - KEEP;
    for (const counts of [this.total, ...this.topics.values()])
      for (const second of counts.keys()) if (second < oldest) counts.delete(second);
    for (const [name, counts] of this.topics) if (counts.size === 0) this.topics.delete(name);
  }

  // The newest second worth drawing: complete, as the server says, or two seconds ago when nothing flows.
  edge() {
    return this.current?.second ? seconds(this.current.second) : this.now - 2;
  }

  rate(name) {
    return this.current?.topics[name]?.messages ?? 0;
  }

  peak(span) {
    let most = 0;
    const edge = this.edge();
    for (const [second, cell] of this.total) if (second > edge - span && second <= edge) most = Math.max(most, cell.messages);
    return most;
  }

  line(counts, span) {
    const edge = this.edge(), out = new Array(span);
    for (let i = 0; i < span; i++) out[i] = counts?.get(edge - span + 1 + i)?.messages ?? 0;
    return out;
  }

  // The busiest `most` topics of the span by name, so that a line keeps its place; the rest is `others`.
  columns(span, most) {
    const edge = this.edge();
    const sums = [...this.topics].map(([name, counts]) => {
      let sum = 0;
      for (const [second, cell] of counts) if (second > edge - span && second <= edge) sum += cell.messages;
      return [name, sum];
    });
    const names = sums.filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))
      .slice(0, most).map(([name]) => name).sort();
    const x = Array.from({ length: span }, (_, i) => edge - span + 1 + i);
    const lines = names.map((name) => this.line(this.topics.get(name), span));
    const others = this.line(this.total, span).map((all, i) => Math.max(0, all - lines.reduce((sum, l) => sum + l[i], 0)));
    return { x, names, lines, others: others.some((n) => n > 0) ? others : null };
  }
}
