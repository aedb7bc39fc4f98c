// Numbers and times as people read them. No I/O, no state.

const DASH = "–";
const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  return value === null || value === undefined ? DASH : GROUPED.format(value);
}

function three(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function scaled(value, base, units) {
  let unit = 0;
  while (unit < units.length - 1 && value >= base * 0.9995) {
    value /= base;
    unit += 1;
  }
  return unit === 0 ? `${GROUPED.format(value)}${units[0]}` : `${three(value)}${units[unit]}`;
}

export function bytes(value) {
  return value === null || value === undefined ? DASH : scaled(value, 1000, [" B", " kB", " MB", " GB", " TB", " PB"]);
}

// For an axis: "10 MB" of "10.0 MB", "3 min" of "3 min 0 s".
export function mark(text) {
  return text.replace(/\.0+ /, " ").replace(/ 0 (s|min|h)$/, "");
}

export function brief(value) {
  return scaled(value, 1000, ["", " k", " M", " G", " T"]);
}

export function percent(part, whole) {
  if (!whole) return DASH;
  const value = (100 * part) / whole;
  if (value === 0) return "0 %";
  if (value < 0.001) return "under 0.001 %";
  return `${value >= 10 ? value.toFixed(1) : value >= 1 ? value.toFixed(2) : value.toFixed(3)} %`;
}

// "1/96": what a version costs beside all weights.
export function ratio(part, whole) {
  if (!whole || !part) return DASH;
  const times = whole / part;
  if (times < 1.05) return part <= whole * 1.05 ? "1/1" : `${(part / whole).toFixed(1)} ×`;
  return `1/${times >= 10 ? GROUPED.format(times) : times.toFixed(1)}`;
}

// Seconds as a length of time.
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  if (seconds < 0.0005) return "0 s";
  if (seconds < 0.9995) return `${seconds < 0.00995 ? (seconds * 1000).toFixed(1) : (seconds * 1000).toFixed(0)} ms`;
  if (seconds < 59.95) return `${seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// Seconds as a time ago: whole units, because it is read again and again.
export function ago(seconds) {
  if (seconds < 1) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export function clock(milliseconds) {
  const when = new Date(milliseconds);
  const pad = (part) => String(part).padStart(2, "0");
  const day = `${when.getFullYear()}-${pad(when.getMonth() + 1)}-${pad(when.getDate())}`;
  return `${day} ${pad(when.getHours())}:${pad(when.getMinutes())}:${pad(when.getSeconds())}`;
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
