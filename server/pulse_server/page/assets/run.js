// One run: what is asked for, what is followed, and what is drawn when something comes.

import { pages, runPath } from "./api.js";
import { Chain } from "./chain.js";
import { copyOf, setText } from "./dom.js";
import { follow } from "./events.js";
import { Figures } from "./figures.js";
import { count } from "./format.js";
import { Heatmap } from "./heatmap.js";
import { History } from "./history.js";
import { Layers } from "./layers.js";
import { OuterRounds } from "./outer.js";
import { plotly } from "./plot.js";
import { Tiles } from "./tiles.js";
import { Timeline } from "./timeline.js";
import { drawVersions } from "./versions.js";
import { Window } from "./window.js";
import { Workers } from "./workers.js";

const PAGE = 1_000;
const CHAIN_EVERY_MS = 4_000; // merged patches come without an event of their own
const OUTER_EVERY_MS = 2_000; // contributions come without an event
const CHECK_EVERY_MS = 15_000;
const NEWS_EVERY_MS = 10_000;
const NO_CHAIN = {
  first: 0,
  last: -1,
  keyframes: [],
  patches: [],
  totals: { keyframes: 0, patches: 0, merged: 0, longest: 0, nbytes: 0 },
};

export async function showRun(frame, run, signal) {
  const shown = new RunView(frame, run, signal);
  await shown.load();
  await shown.follow();
}

class RunView {
  #frame;
  #run;
  #signal;
  #history = new History();
  #window = new Window();
  #full = null;
  #chain = NO_CHAIN;
  #chainDue = 0;
  #layers = new Layers();
  #layersAsked = false;
  #outer = null;
  #outerDue = 0;
  #loadingFrom = Infinity;
  #newsAt = -Infinity;
  #frameAsked = false;
  #plots = null;

  constructor(frame, run, signal) {
    this.#frame = frame;
    this.#run = run;
    this.#signal = signal;
  }

  async load() {
    const { api, main } = this.#frame;
    const body = await api.json(runPath(this.#run), this.#signal);
    const view = copyOf("run-view");
    this.tiles = new Tiles(view);
    this.workers = new Workers(view.querySelector(".workers-part"), () => api.now());
    this.outerRounds = new OuterRounds(view.querySelector(".outer-part"));
    this.heatmap = new Heatmap(view.querySelector(".layers-part"));
    this.table = view.querySelector(".versions");
    this.shown = view.querySelector(".shown");
    this.chainText = view.querySelector(".chain-sub");
    this.buttons = [...view.querySelectorAll("[data-view]")];
    for (const button of this.buttons) button.addEventListener("click", () => this.#move(button.dataset.view));
    setText(view.querySelector(".run-name"), this.#run);
    this.timelineNode = view.querySelector(".timeline");
    this.chainNode = view.querySelector(".chain");
    this.figuresPart = view.querySelector(".figures-part");
    this.afterFirst = [...view.querySelectorAll(".after-first")];
    for (const part of this.afterFirst) part.hidden = body.latest === null;
    main.replaceChildren(view);
    this.#take(body);
    await this.#loadVersions(body.latest);
    await this.#loadChain();
    await this.#loadOuter();
    this.#draw();
    this.#preparePlots();
    this.#loadLayers();
  }

  async follow() {
    const { api } = this.#frame;
    const ticker = setInterval(() => this.#tick(), 1000);
    const checker = setInterval(() => this.#check(), CHECK_EVERY_MS);
    const redraw = () => this.#draw();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const resized = new ResizeObserver(redraw);
    resized.observe(this.timelineNode);
    dark.addEventListener("change", redraw);
    this.#signal.addEventListener("abort", () => {
      clearInterval(ticker);
      clearInterval(checker);
      resized.disconnect();
      dark.removeEventListener("change", redraw);
    });
    await follow({
      api,
      path: `${runPath(this.#run)}/events`,
      after: this.#history.newest?.version ?? null,
      handlers: {
        version: (body) => this.#onVersion(body),
        missed: () => this.#onMissed(),
        workers: (body) => this.#onWorkers(() => this.workers.take(body)),
        worker_changes: (body) => this.#onWorkers(() => this.workers.change(body)),
      },
      onState: (state, seconds) => this.#frame.connection(state, seconds),
      signal: this.#signal,
    });
  }

  #onVersion(body) {
    if (this.#signal.aborted || !this.#history.add([body])) return;
    this.#window.newest = this.#history.newest.version;
    if (this.#window.follows && this.#history.trim()) this.#loadingFrom = Infinity;
    this.#chainDue ||= performance.now() + 500;
    const now = performance.now();
    if (now - this.#newsAt > NEWS_EVERY_MS) {
      this.#newsAt = now;
      setText(document.getElementById("news"), `Version ${count(body.version)} was pushed.`);
    }
    this.#draw();
  }

  // The stream tells of the newest versions alone: what is held begins anew with them, so that it has no gap.
  #onMissed() {
    this.#history = new History();
    this.#loadingFrom = Infinity;
  }

  #onWorkers(take) {
    if (this.#signal.aborted) return;
    take();
    this.#draw();
  }

  async #loadVersions(latest) {
    if (latest === null) return;
    this.#window.newest = latest.version;
    await this.#loadFrom(Math.max(0, latest.version - PAGE + 1), latest.version);
    this.#history.add([latest]);
    if (latest.version < PAGE) this.#window.oldest = this.#history.oldest.version;
  }

  // Loads the versions from `first` to `last`; `after` of the first page is the one before.
  async #loadFrom(first, last) {
    this.#loadingFrom = first;
    const take = (page) => {
      this.#history.add(page.versions);
      this.#frame.age();
      return (page.versions.at(-1)?.version ?? last) < last;
    };
    await pages(this.#frame.api, `${runPath(this.#run)}/versions?limit=${PAGE}`, first > 0 ? first - 1 : null, take, this.#signal);
    if (first === 0) this.#window.oldest = this.#history.oldest?.version ?? 0;
  }

  // Loads the objects in the window, one version around it, and the sums of all.
  async #loadChain() {
    this.#chainDue = 0;
    const { first, last } = this.#window;
    const chain = { ...NO_CHAIN, first, last, keyframes: [], patches: [] };
    const take = (page) => {
      chain.keyframes = chain.keyframes.concat(page.keyframes);
      chain.patches = chain.patches.concat(page.patches);
      chain.totals = page.totals;
    };
    await pages(this.#frame.api, `${runPath(this.#run)}/chain?until=${last + 1}`, Math.max(-1, first - 2), take, this.#signal);
    this.#chain = chain;
  }

  // A run without outer rounds is asked again now and then: they may begin.
  async #loadOuter() {
    this.#outerDue = 0;
    try {
      this.#outer = await this.#frame.api.json(`${runPath(this.#run)}/outer`, this.#signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      this.#outer = null;
    }
    if (this.#outer !== null) this.#outerDue = performance.now() + OUTER_EVERY_MS;
  }

  // One request at a time; what is lacking once it is answered is asked for at the next second.
  async #loadLayers() {
    const lacking = this.#history.newest === null ? null : this.#layers.lacking(this.#window);
    if (lacking === null || this.#layersAsked) return;
    this.#layersAsked = true;
    try {
      if (await this.#quietly(() => this.#layers.load(this.#frame.api, this.#run, lacking, this.#signal))) this.#draw();
    } finally {
      this.#layersAsked = false;
    }
  }

  #take(body) {
    this.#full = body.full_nbytes;
    this.#frame.age();
  }

  // Each second: ages go on; the chain is asked again where it may have grown.
  async #tick() {
    this.tiles.draw(this.#history, this.#full, this.workers.summary, this.#frame.api.now());
    this.#loadLayers();
    if (this.#outerDue !== 0 && performance.now() >= this.#outerDue) {
      this.#outerDue = performance.now() + OUTER_EVERY_MS;
      if (await this.#quietly(() => this.#loadOuter())) this.#draw();
    }
    if (this.#chainDue === 0 || performance.now() < this.#chainDue) return;
    this.#chainDue = performance.now() + CHAIN_EVERY_MS;
    if (await this.#quietly(() => this.#loadChain())) this.#draw();
  }

  // Now and then: what no event tells, such as how old the service's knowledge is.
  async #check() {
    const done = await this.#quietly(async () => this.#take(await this.#frame.api.json(runPath(this.#run), this.#signal)));
    if (done) this.#chainDue ||= performance.now();
    if (done) this.#outerDue ||= performance.now();
  }

  // Runs a request whose failure is told elsewhere: by the stream, which fails alike and says so.
  async #quietly(ask) {
    try {
      await ask();
      return !this.#signal.aborted;
    } catch (error) {
      if (error.name === "AbortError" || error.status !== undefined) return false;
      throw error;
    }
  }

  #move(what) {
    const moves = {
      older: () => this.#window.pan(-1),
      newer: () => this.#window.pan(1),
      in: () => this.#window.zoom(0.5),
      out: () => this.#window.zoom(2),
      newest: () => this.#window.follow(),
    };
    moves[what]();
    this.#moved();
  }

  #moved() {
    this.#draw();
    const { first, last } = this.#window;
    if (first < this.#chain.first || last > this.#chain.last) this.#quietly(() => this.#loadChain()).then((done) => done && this.#draw());
    const held = this.#history.oldest?.version ?? 0;
    if (first >= held || first >= this.#loadingFrom) return;
    this.#quietly(() => this.#loadFrom(Math.max(0, first - PAGE), held - 1)).then((done) => done && this.#draw());
  }

  async #preparePlots() {
    try {
      const script = await plotly();
      if (this.#signal.aborted) return;
      const onShow = (first, last) => {
        this.#window.show(first, last);
        this.#moved();
      };
      this.#plots = {
        timeline: new Timeline(this.timelineNode, script, onShow),
        chain: new Chain(this.chainNode, script, onShow),
        figures: new Figures(this.figuresPart, script, onShow),
      };
      this.#draw();
    } catch (error) {
      setText(this.timelineNode, error.message);
      this.timelineNode.removeAttribute("role");
    }
  }

  // Draws once before the next frame, however much comes until then.
  #draw() {
    if (this.#frameAsked || this.#signal.aborted) return;
    this.#frameAsked = true;
    requestAnimationFrame(() => {
      this.#frameAsked = false;
      if (!this.#signal.aborted) this.#drawNow();
    });
  }

  #drawNow() {
    const now = this.#frame.api.now();
    this.workers.show(this.#history.newest?.version ?? null);
    this.tiles.draw(this.#history, this.#full, this.workers.summary, now);
    this.outerRounds.draw(this.#outer, now);
    if (this.#history.newest === null) return; // there is nothing to plot yet, and no table
    for (const part of this.afterFirst) part.hidden = false;
    drawVersions(this.table, this.#history, this.#full, now);
    this.#drawTools();
    if (this.#layers.lacking(this.#window) === null) this.heatmap.draw(this.#layers.shown(this.#window), this.#window);
    if (this.#plots === null) return;
    const drawn = [
      this.#plots.timeline.draw(this.#history, this.#window, this.#full, this.#chain),
      this.#plots.chain.draw(this.#chain, this.#window).then((sentence) => setText(this.chainText, sentence)),
      this.#plots.figures.draw(this.#history, this.#window),
    ];
    Promise.all(drawn).then(() => this.timelineNode.setAttribute("data-drawn", String(this.#history.newest.version)));
  }

  #drawTools() {
    const { first, last, oldest, newest, follows } = this.#window;
    setText(this.shown, `${count(first)} to ${count(last)} of ${count(newest)}`);
    const blocked = {
      older: first <= oldest,
      newer: follows,
      in: !this.#window.canShrink,
      out: !this.#window.canGrow,
      newest: false,
    };
    for (const button of this.buttons) {
      // Not `disabled`: that would take the focus away from who just pressed it.
      button.setAttribute("aria-disabled", String(blocked[button.dataset.view]));
      if (button.dataset.view === "newest") button.setAttribute("aria-pressed", String(follows));
    }
  }
}
