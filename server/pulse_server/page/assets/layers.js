// What each version changed of each layer: asked for by pages, and kept while the plots may show it.

import { pages, runPath } from "./api.js";

export const SHOWN = 320; // versions: the newest ones of those that the plots show

export class Layers {
  #from = Infinity; // what follows this version, up to the last one asked for, is held
  #to = -Infinity;
  steps = []; // in order, each with the rows that it counts

  // Which versions are to be asked for, so that those of a window are held; null: none.
  lacking({ first, last }) {
    const after = Math.max(0, first - 1, last - SHOWN);
    if (after < this.#from || after > this.#to) return { after, last, steps: [] };
    return last > this.#to ? { after: this.#to, last, steps: this.steps } : null;
  }

  async load(api, run, { after, last, steps }, signal) {
    let held = steps;
    const take = ({ rows, steps: found }) => {
      held = held.concat(found.map((step) => ({ ...step, rows })));
      return (found.at(-1)?.target ?? last) < last;
    };
    await pages(api, `${runPath(run)}/layers?limit=64`, after, take, signal);
    if (steps.length === 0) this.#from = after;
    this.#to = Math.max(last, held.at(-1)?.target ?? last);
    this.steps = held.slice(-4 * SHOWN);
    if (this.steps.length < held.length) this.#from = this.steps[0].base;
  }

  // The steps of a window that count the same rows as its newest one: the rows, and the steps, whose counts are null where
  // they are not known.
  shown({ first, last }) {
    const inside = this.steps.filter((step) => step.target >= first && step.target <= last).slice(-SHOWN);
    const rows = inside.findLast((step) => step.changed.length > 0)?.rows ?? [];
    const names = nameOf(rows);
    return {
      rows,
      steps: inside.map(({ base, target, changed, why, rows: own }) => {
        const known = changed.length > 0 && nameOf(own) === names;
        return { base, target, why: known ? null : (why ?? "layout"), changed: known ? changed : null };
      }),
    };
  }
}

function nameOf(rows) {
  return rows.map((row) => `${row.name} ${row.cells}`).join("\n");
}
