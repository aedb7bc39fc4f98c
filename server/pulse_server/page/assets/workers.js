// The table of workers: who serves which version, and how its last pull went. Of many, those furthest behind are told.

import { element, emptyRow, setText, syncRows } from "./dom.js";
import { bytes, count, duration, plural } from "./format.js";
import { cells, timeCell } from "./table.js";

// Ranks that pull together are one worker, and each reports by itself (`rank_name` in pulse_registry.client.reports).
const RANK = /^(.+)\.rank-(\d{1,6})-of-(\d{1,6})$/;

const ORDERS = {
  worker: (a, b) => compare(a.base, b.base) || a.rank - b.rank,
  version: (a, b) => b.version - a.version,
  behind: (a, b) => b.behind - a.behind,
  reported: (a, b) => compare(b.reported_at, a.reported_at),
  seconds: (a, b) => b.seconds - a.seconds,
};

export class Workers {
  #body;
  #sub;
  #heads;
  #order = "behind";
  #reversed = false;
  #told = new Map(); // by key
  #all = null; // the summary of all, none before the stream's first word
  #newest = null;

  #now;

  // `now` is the service's clock, in ms.
  constructor(section, now) {
    this.#now = now;
    this.#body = section.querySelector("tbody");
    this.#sub = section.querySelector(".workers-sub");
    this.#heads = [...section.querySelectorAll("[data-sort]")];
    for (const head of this.#heads) head.addEventListener("click", () => this.#sortBy(head.dataset.sort));
    this.#markOrder();
  }

  // The list that a stream begins with.
  take(body) {
    this.#told = new Map();
    this.change({ ...body, gone: [] });
  }

  // What changed of it.
  change({ summary, workers, gone }) {
    for (const worker of gone) this.#told.delete(keyOf(worker));
    for (const worker of workers) this.#told.set(keyOf(worker), worker);
    this.#all = summary ?? { workers: this.#told.size }; // a replica of an older release tells of all
  }

  get summary() {
    const all = this.#measured();
    if (this.#all !== null && this.#all.workers > all.length) {
      const { workers, newest, at_newest, oldest, differing } = this.#all;
      const latest = this.#newest ?? newest;
      return { all: workers, current: newest >= latest ? at_newest : 0, furthest: Math.max(0, latest - oldest), wrong: differing };
    }
    return {
      all: all.length,
      current: all.filter((worker) => worker.behind === 0).length,
      furthest: Math.max(0, ...all.map((worker) => worker.behind)),
      wrong: all.filter((worker) => worker.digest_matches === false).length,
    };
  }

  show(newest) {
    this.#newest = newest;
    this.draw();
  }

  draw() {
    if (this.#all === null) return;
    const now = this.#now();
    const all = this.#measured();
    if (all.length === 0) {
      emptyRow(this.#body, 8, "No worker has reported of late. Workers that pull through the service report after each pull.");
      setText(this.#sub, "");
      return;
    }
    const order = ORDERS[this.#order];
    all.sort((a, b) => (this.#reversed ? order(b, a) : order(a, b)) || compare(a.key, b.key));
    syncRows(this.#body, all, (worker) => worker.key, makeRow, (row, worker) => updateRow(row, worker, now));
    const many = this.#all.workers;
    setText(this.#sub, many > all.length ? `The ${count(all.length)} furthest behind of ${count(many)}.` : plural(all.length, "worker"));
  }

  // A worker falls behind with each version that comes, before anybody reports it.
  #measured() {
    const names = new Map();
    const told = [...this.#told.values()];
    for (const { worker } of told) names.set(worker, (names.get(worker) ?? 0) + 1);
    return told.map((worker) => ({
      ...worker,
      ...placeOf(worker.worker),
      key: keyOf(worker),
      // Each token's workers are its own: where two have one name, the token's id tells them apart.
      note: names.get(worker.worker) > 1 && worker.token ? ` (token ${worker.token})` : "",
      behind: this.#newest === null ? worker.staleness : Math.max(0, this.#newest - worker.version),
      // Phases overlap: the time of the whole is told beside them, but not by older replicas.
      seconds: worker.seconds || Object.values(worker.phases).reduce((sum, seconds) => sum + seconds, 0),
    }));
  }

  #sortBy(order) {
    this.#reversed = order === this.#order ? !this.#reversed : false;
    this.#order = order;
    this.#markOrder();
    this.draw();
  }

  #markOrder() {
    // Names rise and figures fall at first: the worst is what one looks for.
    const falling = (this.#order !== "worker") !== this.#reversed;
    for (const head of this.#heads) {
      const own = head.dataset.sort === this.#order;
      head.closest("th").setAttribute("aria-sort", own ? (falling ? "descending" : "ascending") : "none");
    }
  }
}

function keyOf({ worker, token }) {
  return `${worker} ${token ?? ""}`;
}

function placeOf(name) {
  const found = RANK.exec(name);
  return found ? { base: found[1], rank: Number(found[2]), ranks: Number(found[3]) } : { base: name, rank: -1, ranks: 0 };
}

function labelOf({ base, rank, ranks, note }) {
  return (ranks ? `${base}, rank ${rank} of ${ranks}` : base) + note;
}

function makeRow(worker) {
  const row = document.createElement("tr");
  row.append(element("th", { scope: "row" }, labelOf(worker)), ...cells("number", "number", "", "", "number small", "number wide", "wide phases"));
  return row;
}

function updateRow(row, worker, now) {
  const [name, version, behind, digest, reported, seconds, fetched, phases] = row.cells;
  setText(name, labelOf(worker));
  setText(version, count(worker.version));
  setText(behind, worker.behind === 0 ? "0" : count(worker.behind));
  behind.dataset.level = worker.behind === 0 ? "good" : worker.behind > 10 ? "bad" : "fair";
  const matches = worker.digest_matches; // null: nobody knows that version any more
  setText(digest, matches ? "OK" : matches === false ? "Differs" : "–");
  digest.dataset.level = matches ? "good" : matches === false ? "bad" : "";
  timeCell(reported, worker.reported_at, now);
  setText(seconds, Object.keys(worker.phases).length ? duration(worker.seconds) : "–");
  const parts = Object.entries(worker.phases).map(([name, taken]) => `${name} ${duration(taken)}`);
  setText(fetched, worker.nbytes ? bytes(worker.nbytes) : "–");
  setText(phases, parts.join(" · ") || "–");
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}
