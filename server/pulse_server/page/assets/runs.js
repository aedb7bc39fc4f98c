// The list of runs: asked again every few seconds while it is shown.

import { pages } from "./api.js";
import { copyOf, element, emptyRow, setText, syncRows } from "./dom.js";
import { bytes, count, plural } from "./format.js";
import { cells, timeCell } from "./table.js";

const EVERY_MS = 5_000;
const MOST = 1_000;

export async function showRuns(frame, signal) {
  const view = copyOf("runs-view");
  const body = view.querySelector(".runs");
  const sub = view.querySelector(".runs-sub");
  let shown = false;
  for (;;) {
    const runs = [];
    let more = false;
    const take = (page) => {
      runs.push(...page.runs);
      more = page.next !== null;
      return runs.length < MOST;
    };
    try {
      await pages(frame.api, "v1/runs?limit=100", null, take, signal);
      frame.connection("idle");
    } catch (error) {
      // What is shown stays, and says so, while the service is away; a first answer that fails is a view of its own.
      if (!shown || ![0, 429, 500, 502, 503, 504].includes(error.status)) throw error;
      frame.connection("waiting", EVERY_MS / 1000);
    }
    if (!shown) frame.main.replaceChildren(view);
    shown = true;
    if (runs.length) drawRuns(body, runs, frame.api.now());
    else if (body.rows.length === 0) emptyRow(body, 7, "No runs that you may read. A run appears with its first push.");
    if (runs.length) setText(sub, more ? `The first ${count(runs.length)}, by name.` : `${plural(runs.length, "run")}.`);
    else if (body.querySelector(".empty")) setText(sub, "None yet.");
    await sleep(EVERY_MS, signal);
  }
}

function drawRuns(body, runs, now) {
  const make = (run) => {
    const row = document.createElement("tr");
    const head = element("th", { scope: "row" });
    head.append(element("a", { href: `#/runs/${encodeURIComponent(run.run)}` }, run.run));
    row.append(head, ...cells("number small", "number", "number", "", "number", "number small"));
    return row;
  };
  const update = (row, run) => {
    const [, versions, newest, step, pushed, size, full] = row.cells;
    setText(versions, count(run.versions));
    setText(newest, count(run.latest?.version));
    setText(step, count(run.latest?.step));
    timeCell(pushed, run.latest?.created_at, now);
    setText(size, bytes(run.latest?.nbytes));
    setText(full, bytes(run.full_nbytes));
  };
  syncRows(body, runs, (run) => run.run, make, update);
}

// Waits; throws AbortError where the view is left meanwhile.
function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(done, milliseconds);
    function done() {
      signal.removeEventListener("abort", left);
      resolve();
    }
    function left() {
      clearTimeout(timer);
      reject(new DOMException("the view was left", "AbortError"));
    }
    if (signal.aborted) left();
    else signal.addEventListener("abort", left, { once: true });
  });
}
