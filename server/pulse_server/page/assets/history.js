// The versions that the page holds of one run, and what follows from them. No I/O.

const RECENT = 50; // versions that "usually" speaks of
const MOST = 20_000; // twice what a window shows
const KEPT = 15_000;

export class History {
  versions = []; // ascending by number
  #places = new Map();

  get newest() {
    return this.versions.at(-1) ?? null;
  }

  get oldest() {
    return this.versions[0] ?? null;
  }

  // Takes versions in any order; one that is there already is replaced. Says whether the newest changed.
  add(bodies) {
    const before = this.newest?.version ?? -1;
    let ordered = true;
    for (const body of bodies) {
      const version = { ...body, at: Date.parse(body.created_at) };
      const place = this.#places.get(body.version);
      if (place !== undefined && this.versions[place].version === body.version) {
        this.versions[place] = version;
        continue;
      }
      if (this.newest && body.version < this.newest.version) ordered = false;
      this.#places.set(body.version, this.versions.length);
      this.versions.push(version);
    }
    if (!ordered) {
      this.versions.sort((a, b) => a.version - b.version);
      this.#index();
    }
    return (this.newest?.version ?? -1) > before;
  }

  // Lets go of the oldest where there are too many: a page may stay open for weeks. Says whether it did.
  trim() {
    if (this.versions.length <= MOST) return false;
    this.versions = this.versions.slice(-KEPT);
    this.#index();
    return true;
  }

  at(number) {
    return this.versions[this.#places.get(number)] ?? null;
  }

  // The versions from `first` to `last`, and one more on each side so that lines reach the edge.
  between(first, last) {
    const from = this.#search(first);
    const to = this.#search(last + 1);
    return this.versions.slice(Math.max(0, from - 1), to + 1);
  }

  // Seconds from the version before to this one; none for the first.
  interval(version) {
    const before = this.at(version.version - 1);
    return before === null ? null : Math.max(0, (version.at - before.at) / 1000);
  }

  usualInterval() {
    return median(this.versions.slice(-RECENT).map((v) => this.interval(v)).filter((s) => s !== null));
  }

  usualBytes() {
    return median(this.versions.slice(-RECENT).filter((v) => v.kind === "patch").map((v) => v.nbytes));
  }

  #index() {
    this.#places = new Map(this.versions.map((version, place) => [version.version, place]));
  }

  // The place of the first version that is not below `number`.
  #search(number) {
    let low = 0;
    let high = this.versions.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.versions[middle].version < number) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

export function median(values) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// Is the run publishing? "quiet" from five times the usual interval on, and not before a minute.
export function publishing(history, now) {
  const newest = history.newest;
  if (newest === null) return { state: "empty", since: null, usual: null };
  const since = Math.max(0, (now - newest.at) / 1000);
  const usual = history.usualInterval();
  if (usual === null) return { state: since < 600 ? "new" : "quiet", since, usual };
  return { state: since > Math.max(60, 5 * usual) ? "quiet" : "live", since, usual };
}
