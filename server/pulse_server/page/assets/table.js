// Cells that tables share.

import { element, setText } from "./dom.js";
import { ago, clock } from "./format.js";

export function cells(...classes) {
  return classes.map((name) => element("td", { class: name || null }));
}

// A time ago that runs on; the exact time, in the reader's own zone, on hover.
export function timeCell(cell, timestamp, now) {
  if (!timestamp) {
    setText(cell, "–");
    return;
  }
  let time = cell.querySelector("time");
  if (time === null) {
    time = document.createElement("time");
    cell.replaceChildren(time);
  }
  if (time.dateTime !== timestamp) {
    time.dateTime = timestamp;
    time.title = clock(Date.parse(timestamp));
  }
  setText(time, ago((now - Date.parse(timestamp)) / 1000));
}
