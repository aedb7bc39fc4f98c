// The table of the newest versions.

import { element, setText, syncRows } from "./dom.js";
import { bytes, count, percent, ratio } from "./format.js";
import { cells, timeCell } from "./table.js";

const ROWS = 20;
const LONGEST = 200; // characters of metadata

export function drawVersions(body, history, full, now) {
  const newest = history.versions.slice(-ROWS).reverse();
  syncRows(body, newest, (version) => version.version, makeRow, (row, version) => updateRow(row, version, full, now));
}

function makeRow(version) {
  const row = document.createElement("tr");
  row.append(
    element("th", { scope: "row", class: "number" }, count(version.version)),
    ...cells("number", "", "small", "number", "number", "number small", "wide metadata"),
  );
  return row;
}

function updateRow(row, version, full, now) {
  const [, step, pushed, kind, changed, size, share, metadata] = row.cells;
  setText(step, count(version.step));
  timeCell(pushed, version.created_at, now);
  setText(kind, version.kind);
  setText(changed, percent(version.changed, version.cells));
  setText(size, bytes(version.nbytes));
  setText(share, ratio(version.nbytes, full));
  const text = Object.entries(version.metadata).map(([name, value]) => `${name} ${plain(value)}`).join(" · ");
  setText(metadata, text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text || "–");
}

function plain(value) {
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return typeof value === "string" ? value : JSON.stringify(value);
}
