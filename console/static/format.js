// Numbers and times for people.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const number = (n) => whole.format(n);

export function short(n) {
  if (n < 10_000) return whole.format(n);
  const units = ["", "k", "M", "G", "T"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) { n /= 1000; unit++; }
  return (n < 100 ? n.toFixed(1) : n.toFixed(0)) + "\u2009" + units[unit];
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
  return (unit === 0 || n >= 100 ? n.toFixed(0) : n.toFixed(1)) + "\u2009" + units[unit];
}

export function since(time, now) {
  const s = Math.max(0, Math.floor((now - Date.parse(time)) / 1000));
  if (s < 60) return `${s}\u2009s`;
  if (s < 3600) return `${Math.floor(s / 60)}\u2009min`;
  if (s < 86400) return `${Math.floor(s / 3600)}\u2009h ${Math.floor((s % 3600) / 60)}\u2009min`;
  return `${Math.floor(s / 86400)}\u2009d`;
}

export const clock = (second) => new Date(second * 1000).toLocaleTimeString([], { hour12: false });

// A stretch of time in ms, in its two largest units at most.
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)}\u2009ms`;
  const s = Math.round(ms / 1000), units = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => s >= size), [size, word] = units[first], rest = s % size, second = units[first + 1];
  const more = second && Math.floor(rest / second[0]) ? ` ${Math.floor(rest / second[0])}\u2009${second[1]}` : "";
  return `${Math.floor(s / size)}\u2009${word}${more}`;
}

const two = (n) => String(n).padStart(2, "0");

const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;

// A moment, to the second: 12:00:07 of today, or 2026-03-01 12:00:07. `time` is ms or RFC 3339.
export function moment(time) {
  if (time === null || time === undefined || time === 0 || time === "") return "–";
  const at = new Date(time), hour = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return day(at) === day(new Date()) ? hour : `${day(at)} ${hour}`;
}

// The words below an axis of seconds, `step` apart: the hour, and the day where it begins.
export function ticks(seconds, step) {
  let before = "";
  return seconds.map((second) => {
    const at = new Date(second * 1000), hour = step < 60 ? clock(second) : clock(second).slice(0, 5);
    const changed = day(at) !== before && before !== "", isMidnight = hour.startsWith("00:00");
    before = day(at);
    return step >= 86_400 ? day(at) : changed || isMidnight ? `${hour}\n${day(at)}` : hour;
  });
}

// What is typed as 90s, 30m, 12h or 3d, in ms; null when it is none of these.
export function parseDuration(text) {
  const found = /^\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|d)\s*$/.exec(text);
  return found ? Math.round(Number(found[1]) * { ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000 }[found[2]]) : null;
}

// What parseDuration reads, of the largest unit that goes in evenly.
export function typedDuration(ms) {
  const [size, word] = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "m"], [1000, "s"], [1, "ms"]].find(([size]) => ms % size === 0);
  return `${ms / size}${word}`;
}
