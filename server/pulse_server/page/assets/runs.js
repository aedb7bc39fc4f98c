// The table of all runs: followed by one stream, drawn row by row as they change, and ordered now and then.

import { around, copyOf, element, emptyRow, setText, syncRows } from "./dom.js";
import { follow } from "./events.js";
import { Fleet, pauseText } from "./fleet.js";
import { bytes, count, plural, ratio } from "./format.js";
import { cells, timeCell } from "./table.js";

const COLUMNS = 9;
const ORDER_EVERY_MS = 5_000; // rows that move all the time can't be read

export async function showRuns(frame, signal) {
  await frame.api.json("v1/runs?limit=1", signal); // a service that can't answer says why; a stream is only tried again
  const view = new RunsView(frame, signal);
  await follow({
    api: frame.api,
    path: "v1/events",
    after: null,
    handlers: { runs: (body) => view.take(body) },
    onState: (state, seconds) => frame.connection(state, seconds),
    signal,
  });
}

class RunsView {
  #frame;
  #signal;
  #fleet = new Fleet();
  #changed = new Set(); // null: order all anew
  #frameAsked = false;
  #order = "warnings";
  #reversed = false;
  #shown = false;
  #view;

  constructor(frame, signal) {
    this.#frame = frame;
    this.#signal = signal;
    this.#view = copyOf("runs-view").firstElementChild;
    this.body = this.#view.querySelector("tbody");
    this.sub = this.#view.querySelector(".runs-sub");
    this.filter = this.#view.querySelector("#filter");
    this.heads = [...this.#view.querySelectorAll("[data-sort]")];
    for (const head of this.heads) head.addEventListener("click", () => this.#sortBy(head.dataset.sort));
    this.filter.addEventListener("input", () => this.#draw(null));
    const orderer = setInterval(() => this.#reorder(), ORDER_EVERY_MS);
    signal.addEventListener("abort", () => clearInterval(orderer));
    this.#markOrder();
  }

  take(body) {
    if (this.#signal.aborted) return;
    const { known, total } = this.#fleet;
    const changed = this.#fleet.take(body);
    if (!this.#shown) this.#frame.main.replaceChildren(this.#view);
    this.#shown = true;
    this.#draw(this.#fleet.known === known && this.#fleet.total === total ? changed : null);
  }

  // Draws once before the next frame, however much comes until then.
  #draw(runs) {
    if (runs === null) this.#changed = null;
    else if (this.#changed !== null) for (const run of runs) this.#changed.add(run);
    if (this.#frameAsked) return;
    this.#frameAsked = true;
    requestAnimationFrame(() => {
      this.#frameAsked = false;
      if (this.#signal.aborted) return;
      const changed = this.#changed;
      this.#changed = new Set();
      if (changed === null) this.#drawAll();
      else this.#drawRows(changed);
    });
  }

  // Not while somebody points at a row, or has the focus in one: it would move away.
  #reorder() {
    if (this.#shown && !this.body.matches(":hover, :focus-within")) this.#draw(null);
  }

  #drawAll() {
    const now = this.#frame.api.now();
    const text = this.filter.value;
    const rows = this.#fleet.rows(now, { order: this.#order, reversed: this.#reversed, text });
    if (rows.length) syncRows(this.body, rows, (row) => row.run, makeRow, (node, row) => updateRow(node, row, now));
    else emptyRow(this.body, COLUMNS, this.#fleet.known ? "No run matches." : this.#nothing());
    this.#say(rows.length);
    this.body.dataset.drawn = String(Number(this.body.dataset.drawn ?? 0) + 1);
  }

  #drawRows(runs) {
    const now = this.#frame.api.now();
    for (const node of this.body.rows) {
      if (runs.has(node.dataset.key)) updateRow(node, this.#fleet.at(node.dataset.key, now), now);
    }
    this.body.dataset.drawn = String(Number(this.body.dataset.drawn ?? 0) + 1);
  }

  #nothing() {
    return this.#fleet.total ? "Loading…" : "No runs that you may read. A run appears with its first push.";
  }

  #say(matching) {
    const { known, total, more } = this.#fleet;
    const all = more ? `the first ${count(total)} runs, by name` : plural(total, "run");
    const part = matching < known ? `${count(matching)} of ` : known < total ? `Loading ${count(known)} of ` : "";
    const text = total ? `${part}${all}` : "None yet";
    setText(this.sub, `${text[0].toUpperCase()}${text.slice(1)}.`);
  }

  #sortBy(order) {
    this.#reversed = order === this.#order ? !this.#reversed : false;
    this.#order = order;
    this.#markOrder();
    this.#draw(null);
  }

  #markOrder() {
    const falling = !["run", "pushed"].includes(this.#order) !== this.#reversed;
    for (const head of this.heads) {
      const own = head.dataset.sort === this.#order;
      head.closest("th").setAttribute("aria-sort", own ? (falling ? "descending" : "ascending") : "none");
    }
  }
}

function makeRow({ run }) {
  const row = document.createElement("tr");
  const head = element("th", { scope: "row" });
  head.append(element("a", { href: `#/runs/${encodeURIComponent(run)}` }, run));
  row.append(head, ...cells("", "number small", "", "number small", "number", "number small", "number small", "wide said"));
  return row;
}

function updateRow(node, row, now) {
  const [, warnings, version, pushed, size, behind, workers, pause, said] = node.cells;
  drawWarnings(warnings, row.warnings);
  setText(version, count(row.version));
  timeCell(pushed, row.pushed, now);
  setText(size, bytes(row.nbytes));
  setTitle(size, row.full ? `${ratio(row.nbytes, row.full)} of all weights, ${bytes(row.full)}` : "");
  setText(behind, row.workers ? count(row.behind) : "–");
  setTitle(behind, row.behind ? `the furthest is ${count(row.furthest)} behind` : "");
  setText(workers, row.workers ? count(row.workers) : "–");
  setText(pause, pauseText(row.pause));
  drawSaid(said, row);
}

function drawWarnings(cell, warnings) {
  const key = warnings.map(({ text }) => text).join(", ");
  if (cell.dataset.key === key) return;
  cell.dataset.key = key;
  cell.replaceChildren(...warnings.map(({ level, text, title }) => element("span", { class: "warning", "data-level": level, title }, text)));
}

// Tags, and the newest note with its version.
function drawSaid(cell, { tags, tagged, note }) {
  const more = tagged > tags.length ? [`and ${plural(tagged - tags.length, "tag")}`] : [];
  const key = [...tags, ...more, note?.version, note?.text].join("\n");
  if (cell.dataset.key === key) return;
  cell.dataset.key = key;
  const named = [...tags.map((tag) => element("span", { class: "tag" }, tag)), ...more.map((text) => element("span", { class: "sub" }, text))];
  if (note) named.push(around("span", { class: "note" }, element("span", { class: "sub" }, `${count(note.version)}: `), note.text));
  cell.replaceChildren(...named);
}

function setTitle(node, text) {
  if (node.title !== text) node.title = text;
}
