// The runs that the page was told of, and what follows from them: warnings, order, and which match a text. No I/O.

import { count, duration, plural } from "./format.js";

const FAR_BEHIND = 10; // versions, as in the table of workers
const DAY_S = 86_400;

// Names rise and figures fall at first: the worst is what one looks for.
export const ORDERS = {
  warnings: (a, b) => b.weight - a.weight,
  run: (a, b) => compare(a.run, b.run),
  version: (a, b) => least(b.version) - least(a.version),
  pushed: (a, b) => a.since - b.since,
  bytes: (a, b) => least(b.nbytes) - least(a.nbytes),
  workers: (a, b) => b.workers - a.workers,
  behind: (a, b) => b.behind - a.behind || b.furthest - a.furthest,
  pause: (a, b) => least(b.pause) - least(a.pause),
};

export class Fleet {
  total = 0;
  more = false;
  #lines = new Map(); // by run

  // Takes an event; says which runs are told otherwise now, or null: all of them.
  take({ whole, total, more, runs }) {
    if (whole) this.#lines = new Map();
    this.total = total;
    this.more = more;
    for (const line of runs) this.#lines.set(line.run, line);
    return whole ? null : runs.map((line) => line.run);
  }

  get known() {
    return this.#lines.size;
  }

  at(run, now) {
    return figures(this.#lines.get(run), now);
  }

  // The runs that match, in order; those that are alike, by name.
  rows(now, { order, reversed, text }) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...this.#lines.values()].map((line) => figures(line, now)).filter((row) => words.every((word) => row.text.includes(word)));
    const by = ORDERS[order];
    return found.sort((a, b) => (reversed ? by(b, a) : by(a, b)) || compare(a.run, b.run));
  }
}

// What the table shows of a run; `since` is the age of its newest version in seconds.
function figures(line, now) {
  const { run, latest, summary, full_nbytes: full } = line;
  const since = latest === null ? Infinity : Math.max(0, (now - Date.parse(latest.created_at)) / 1000);
  const { workers = 0, newest = null, at_newest: atNewest = 0, oldest = null } = summary?.workers ?? {};
  const version = latest?.version ?? null;
  const current = newest !== null && newest >= version ? atNewest : 0;
  const row = {
    run,
    version,
    since,
    pushed: latest?.created_at ?? null,
    nbytes: summary?.usual_nbytes ?? latest?.nbytes ?? null,
    full,
    workers,
    behind: workers - current,
    furthest: oldest === null ? 0 : Math.max(0, version - oldest),
    pause: summary?.pause_s ?? null,
    tags: Object.entries(summary?.tags ?? {}).map(([name, of]) => `${name} ${count(of)}`),
    tagged: summary?.tagged ?? 0,
    note: summary?.note ?? null,
  };
  row.warnings = warningsOf(line, row);
  row.weight = row.warnings.reduce((sum, { level }) => sum + (level === "bad" ? 100 : 1), 0);
  const texts = [run, ...Object.keys(summary?.tags ?? {}), row.note?.text ?? "", ...row.warnings.map(({ text }) => text)];
  row.text = texts.join("\n").toLowerCase();
  return row;
}

// What somebody should look at. A run that pushed nothing for a day is over: that is no warning.
function warningsOf({ stale, summary, home }, { since, furthest }) {
  const found = [];
  const { differing = 0 } = summary?.workers ?? {};
  if (stale) found.push({ level: "bad", text: "log can't be read" });
  if (differing) found.push({ level: "bad", text: `${plural(differing, "digest")} ${differing === 1 ? "differs" : "differ"}` });
  if (summary?.avoided) found.push({ level: "bad", text: "objects avoided", title: `${plural(summary.avoided, "worker")} found objects gone or damaged` });
  if (furthest > FAR_BEHIND) found.push({ level: "bad", text: `${count(furthest)} versions behind` });
  if (home) found.push({ level: "fair", text: "moved", title: `lives at ${home}; nothing is written to it here` });
  else if (isQuiet(since, summary?.usual_s ?? null)) found.push({ level: "fair", text: "quiet" });
  return found;
}

// As on the page of a run: five times the usual interval, and not before a minute.
export function isQuiet(since, usual) {
  return usual !== null && since > Math.max(60, 5 * usual) && since < DAY_S;
}

export function pauseText(seconds) {
  return seconds === null ? "–" : duration(seconds);
}

function least(value) {
  return value ?? -1;
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}
