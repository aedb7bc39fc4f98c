// What trainers say of versions in numbers: the keys of their metadata that hold some, found by themselves. No I/O.

const MOST = 6; // keys that are plotted
const DEEPEST = 3;
const MOST_KEYS = 200; // of a run, that are looked at: a trainer may make up a new one each time

// The numbers in a version's metadata, by their keys; those of objects within it as `outer.inner`.
export function numbersOf(metadata, before = "", depth = 1) {
  const found = [];
  for (const [name, value] of Object.entries(metadata)) {
    if (typeof value === "number" && Number.isFinite(value)) found.push([before + name, value]);
    else if (depth < DEEPEST && value !== null && typeof value === "object" && !Array.isArray(value)) {
      found.push(...numbersOf(value, `${before}${name}.`, depth + 1));
    }
  }
  return found;
}

// The keys that a run's versions have had numbers under. They stay when the window moves, so that plots do, too.
export class Numbers {
  #seen = new Map(); // by key: the least and the greatest number

  // Returns what these versions say, by key: [{key, points: [{version, step, value}]}], and the keys that are left out.
  of(versions) {
    const points = new Map();
    for (const { version, step, metadata } of versions) {
      for (const [key, value] of numbersOf(metadata)) {
        const seen = this.#seen.get(key);
        if (seen === undefined && this.#seen.size >= MOST_KEYS) continue;
        this.#seen.set(key, seen ? [Math.min(seen[0], value), Math.max(seen[1], value)] : [value, value]);
        if (!points.has(key)) points.set(key, []);
        points.get(key).push({ version, step, value });
      }
    }
    const keys = [...this.#seen.keys()].sort((a, b) => this.#rank(a) - this.#rank(b) || (a < b ? -1 : 1));
    const shown = keys.slice(0, MOST).map((key) => ({ key, points: points.get(key) ?? [] }));
    return { shown, others: keys.slice(MOST) };
  }

  // What never changes, such as the number of trainers, comes last.
  #rank(key) {
    const [least, most] = this.#seen.get(key);
    return least < most ? 0 : 1;
  }
}
