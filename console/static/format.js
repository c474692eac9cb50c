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
