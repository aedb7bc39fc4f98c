// Which versions the plots show: a span that follows the newest, or one that stays where it was put. No I/O.

const FEWEST = 10;
const MOST = 10_000;
const AT_FIRST = 300;

export class Window {
  #span = AT_FIRST;
  #end = null; // none: the newest, whichever that is

  constructor() {
    this.newest = 0;
    this.oldest = 0; // of the run, not of what is loaded
  }

  get follows() {
    return this.#end === null;
  }

  get last() {
    return this.#end ?? this.newest;
  }

  get first() {
    return Math.max(this.oldest, this.last - this.#span + 1);
  }

  get canGrow() {
    return this.#span < MOST && (this.first > this.oldest || this.last < this.newest);
  }

  get canShrink() {
    return this.last - this.first + 1 > FEWEST;
  }

  follow() {
    this.#end = null;
    this.#span = Math.max(this.#span, Math.min(AT_FIRST, MOST));
  }

  zoom(factor) {
    const held = Math.min(this.#span, this.last - this.first + 1);
    const span = Math.min(MOST, Math.max(FEWEST, Math.round(held * factor)));
    // Around the middle, unless the newest is in sight: then that end stays.
    const end = this.follows ? this.newest : Math.round(this.last + (span - held) / 2);
    this.#span = span;
    this.#moveTo(end);
  }

  // Half a window back (-1) or on (+1).
  pan(direction) {
    this.#span = Math.min(this.#span, Math.max(FEWEST, this.last - this.first + 1));
    this.#moveTo(this.last + direction * Math.max(1, Math.round(this.#span / 2)));
  }

  // What the reader drew over a plot.
  show(first, last) {
    const from = Math.max(this.oldest, Math.round(Math.min(first, last)));
    const to = Math.min(this.newest, Math.round(Math.max(first, last)));
    this.#span = Math.min(MOST, Math.max(FEWEST, to - from + 1));
    this.#moveTo(Math.max(to, from));
  }

  #moveTo(end) {
    const least = Math.min(this.newest, this.oldest + this.#span - 1);
    const place = Math.max(end, least);
    this.#end = place >= this.newest ? null : place;
  }
}
