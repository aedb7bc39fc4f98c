// The figures at the top of a run, and the sentence that says whether it is publishing.

import { setText } from "./dom.js";
import { ago, brief, bytes, count, duration, percent, ratio } from "./format.js";
import { publishing } from "./history.js";

export class Tiles {
  #tiles;
  #verdict;

  constructor(view) {
    this.#tiles = new Map([...view.querySelectorAll("[data-tile]")].map((tile) => [tile.dataset.tile, tile]));
    this.#verdict = view.querySelector(".verdict");
  }

  draw(history, full, workers, now) {
    const { newest } = history;
    const { state, since, usual } = publishing(history, now);
    this.#verdict.dataset.state = state;
    setText(this.#verdict, verdictOf(state, since, usual));
    this.#drawWorkers(workers);
    if (newest === null) return;
    this.#set("version", count(newest.version), `step ${count(newest.step)}`);
    this.#set("age", ago(since), usual === null ? "" : `about every ${duration(usual)}`);
    if (newest.kind === "patch") {
      this.#set("changed", percent(newest.changed, newest.cells), `${brief(newest.changed)} of ${brief(newest.cells)} cells`);
    } else {
      this.#set("changed", "All", `keyframe of ${brief(newest.cells)} cells`);
    }
    const cost = history.usualBytes() ?? newest.nbytes;
    this.#set("bytes", bytes(cost), full ? `${ratio(cost, full)} of all weights, ${bytes(full)}` : "all weights: not known");
  }

  #drawWorkers({ all, current, furthest, wrong }) {
    const tile = this.#tiles.get("workers");
    tile.dataset.level = wrong ? "bad" : "";
    const note = wrong ? `${count(wrong)} with a digest that differs` : furthest ? `furthest ${count(furthest)} behind` : "none behind";
    this.#set("workers", all ? `${count(current)} of ${count(all)}` : "–", all ? note : "none has reported");
  }

  #set(name, value, note) {
    const tile = this.#tiles.get(name);
    setText(tile.querySelector(".value"), value);
    setText(tile.querySelector(".note"), note || " ");
  }
}

function verdictOf(state, since, usual) {
  switch (state) {
    case "empty":
      return "No version yet. The first push makes version 0.";
    case "new":
      return "Publishing: the first version is there.";
    case "live":
      return `Publishing: a version about every ${duration(usual)}.`;
    default:
      return usual === null
        ? `Quiet: one version, ${ago(since)}, and none since.`
        : `Quiet: nothing for ${duration(since)}; before, a version came about every ${duration(usual)}.`;
  }
}
