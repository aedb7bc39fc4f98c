// Outer rounds: who trains, how each stands to the open round, and what the newest rounds came to.

import { element, setText, syncRows } from "./dom.js";
import { bytes, count, percent, plural } from "./format.js";
import { cells, timeCell } from "./table.js";

const STANDING = {
  contributed: "has contributed",
  awaited: "awaited",
  later: "from a later round on",
  missed: "not waited for",
  left: "has left",
};

export class OuterRounds {
  #part;
  #sub;
  #members;
  #rounds;

  constructor(part) {
    this.#part = part;
    this.#sub = part.querySelector(".outer-sub");
    this.#members = part.querySelector(".members");
    this.#rounds = part.querySelector(".rounds");
  }

  // Draws what the service says; null where the run has no outer rounds.
  draw(body, now) {
    this.#part.hidden = body === null;
    if (body === null) return;
    setText(this.#sub, sentence(body));
    syncRows(this.#members, body.members, (one) => one.member, (one) => makeRow(one.member, "", MEMBER), (row, one) => updateMember(row, one, body, now));
    const newest = [body.open, ...body.rounds.toReversed()];
    syncRows(this.#rounds, newest, (one) => one.round, (one) => makeRow(count(one.round), "number", ROUND), (row, one) => updateRound(row, one, body, now));
  }
}

const MEMBER = ["", "number", "number", "number", "number", "number small", ""];
const ROUND = ["number small", "", "", "number", "number", "number", ""];

function sentence({ open, quorum, inner_steps: steps }) {
  const here = open.parts.length;
  const late = open.late.length;
  return `Round ${count(open.round)} is open: ${plural(here, "contribution")}, ${count(late)} awaited; it needs ${count(quorum)}. ${plural(steps, "inner step")} a round.`;
}

function makeRow(name, kind, classes) {
  const row = document.createElement("tr");
  row.append(element("th", { scope: "row", class: kind || null }, name), ...cells(...classes));
  return row;
}

function updateMember(row, one, body, now) {
  const [, standing, round, entries, density, size, missed, at] = row.cells;
  row.dataset.standing = one.standing;
  setText(standing, one.standing === "missed" ? `${STANDING.missed}: missed ${count(one.missed)}` : STANDING[one.standing]);
  setText(round, count(one.last_round));
  setText(entries, count(one.last?.entries));
  setText(density, one.last === null ? "–" : percent(one.last.entries, body.cells));
  setText(size, bytes(one.last?.nbytes));
  setText(missed, count(one.missed));
  timeCell(at, one.last?.created_at, now);
}

function updateRound(row, one, body, now) {
  const [, version, contributed, late, entries, density, size, at] = row.cells;
  row.dataset.ended = String(one.ended);
  const sum = (field) => one.parts.reduce((total, part) => total + part[field], 0);
  setText(version, one.ended ? count(one.version) : "open");
  setText(contributed, one.parts.map((part) => part.member).join(", ") || "–");
  setText(late, one.late.join(", ") || "–");
  setText(entries, count(sum("entries")));
  setText(density, one.parts.length ? percent(sum("entries") / one.parts.length, body.cells) : "–");
  setText(size, bytes(sum("nbytes")));
  timeCell(at, one.parts.map((part) => part.created_at).sort().at(-1), now);
}
