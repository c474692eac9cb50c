// Rates from counters that only rise, read now and then: messages per second of the last minutes.

const KEEP_S = 300;

export class Rates {
  #points = [];
  #last = null;

  // `counts` are totals at this moment, each a number; a counter that fell began anew.
  take(second, counts) {
    const before = this.#last;
    this.#last = { second, counts };
    if (before === null || second <= before.second) return;
    const passed = second - before.second;
    this.#points.push({ second, rates: counts.map((n, i) => Math.max(0, n - before.counts[i]) / passed) });
    while (this.#points.length && this.#points[0].second < second - KEEP_S) this.#points.shift();
  }

  get newest() {
    return this.#points.at(-1)?.rates ?? null;
  }

  // Columns for a chart: seconds, and a line for each counter; a stretch that nobody measured is a gap.
  columns() {
    const until = Math.floor(this.#last?.second ?? 0), x = Array.from({ length: KEEP_S }, (_, i) => until - KEEP_S + 1 + i);
    const found = new Map(this.#points.map((point) => [Math.floor(point.second), point.rates]));
    let carried = null, age = 0;
    const rows = x.map((second) => {
      const rates = found.get(second);
      if (rates) { carried = rates; age = 0; } else if (++age > 3) carried = null;
      return carried;
    });
    return { x, line: (i) => rows.map((rates) => (rates ? rates[i] : null)) };
  }
}
