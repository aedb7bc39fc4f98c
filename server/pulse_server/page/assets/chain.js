// The chain as spans over versions, each object from its base to its target. Rows: keyframes, patches, each merged length.

import { bytes, count, plural } from "./format.js";
import { CONFIG, axis, baseLayout, colours, onZoom, versionAxis } from "./plot.js";

const LEAST_PIXELS = 3; // a span narrower than this is not drawn
const LEAST_ROWS = 3; // of merged lengths, so that a young chain is not stretched
const GAP_PIXELS = 1.5; // left free at each end, so that neighbours are told apart

export class Chain {
  #node;
  #plotly;

  constructor(node, plotly, onShow) {
    this.#node = node;
    this.#plotly = plotly;
    this.onShow = onShow;
  }

  // Returns a sentence on what the chain holds.
  async draw(chain, window) {
    const ink = colours();
    const narrow = this.#node.clientWidth < 600;
    const base = baseLayout(ink, narrow);
    const width = Math.max(100, this.#node.clientWidth - base.margin.l - base.margin.r);
    const scale = (window.last - window.first + 1) / width; // versions a pixel
    const inView = (from, to) => to >= window.first - 1 && from <= window.last + 1;
    const patches = chain.patches.filter((patch) => inView(patch.base, patch.target));
    const drawn = patches.filter((patch) => patch.target - patch.base >= scale * LEAST_PIXELS);
    const single = drawn.filter((patch) => patch.target - patch.base === 1);
    const merged = drawn.filter((patch) => patch.target - patch.base > 1);
    const keyframes = chain.keyframes.filter((mark) => mark.version >= window.first && mark.version <= window.last);
    const traces = [
      single.length ? spans(single, ink.patch, scale) : joined(patches, ink.patch),
      spans(merged, ink.merged, scale),
      diamonds(keyframes, ink.keyframe),
    ];
    const highest = Math.max(LEAST_ROWS, level(Math.max(1, chain.totals.longest)));
    const layout = {
      ...base,
      height: this.#node.clientHeight,
      hovermode: "closest",
      hoverdistance: 30,
      xaxis: versionAxis(ink, window, { showgrid: false }),
      yaxis: axis(ink, { range: [-1.6, highest + 0.6], showgrid: false, ...rowNames(highest, narrow) }),
    };
    const first = this.#node.on === undefined;
    await this.#plotly.react(this.#node, traces, layout, CONFIG);
    if (first) onZoom(this.#node, (from, to) => this.onShow(from, to));
    const least = Math.ceil(scale * LEAST_PIXELS);
    const hint = least > 2 ? `Spans under ${count(least)} versions are too narrow to draw here.` : "Each span leads from its left end to its right.";
    const sentence = `${summary(chain.totals)} ${hint}`;
    this.#node.setAttribute("aria-label", `The chain from version ${count(window.first)} to ${count(window.last)}. ${sentence}`);
    return sentence;
  }
}

function level(span) {
  return Math.log2(span);
}

function rowNames(highest, narrow) {
  const every = highest > 8 ? 2 : 1;
  const values = [-1, 0];
  const texts = [narrow ? "key" : "keyframes", narrow ? "patch" : "patches"];
  for (let row = 1; row <= highest; row += 1) {
    if (row % every && row !== 1) continue;
    values.push(row);
    texts.push(row === 1 && !narrow ? "merged 2" : count(2 ** row));
  }
  return { tickvals: values, ticktext: texts };
}

// A segment from base to target; its middle and ends answer to the pointer.
function spans(patches, colour, scale) {
  const x = [];
  const y = [];
  const text = [];
  for (const { base, target, nbytes } of patches) {
    const gap = Math.min(GAP_PIXELS * scale, (target - base) / 4);
    const what = target - base === 1 ? "Patch" : `Merged over ${count(target - base)}:`;
    const told = `${what} ${count(base)} → ${count(target)}, ${bytes(nbytes)}`;
    x.push(base + gap, (base + target) / 2, target - gap, null);
    y.push(...Array(3).fill(level(target - base)), null);
    text.push(told, told, told, "");
  }
  return { type: "scatter", mode: "lines", x, y, text, hovertemplate: "%{text}<extra></extra>", line: { color: colour, width: 7 } };
}

// Patches from a version to the next, where single ones are too narrow: one segment for as long as none is missing.
function joined(patches, colour) {
  const bases = patches.filter((p) => p.target - p.base === 1).map((p) => p.base).sort((a, b) => a - b);
  const x = [];
  for (let place = 0; place < bases.length; place += 1) {
    if (place === 0 || bases[place] !== bases[place - 1] + 1) x.push(...(place ? [bases[place - 1] + 1, null] : []), bases[place]);
  }
  if (bases.length) x.push(bases.at(-1) + 1);
  return { type: "scatter", mode: "lines", x, y: x.map((v) => (v === null ? null : 0)), hoverinfo: "skip", line: { color: colour, width: 7 } };
}

function diamonds(keyframes, colour) {
  return {
    type: "scatter",
    mode: "markers",
    x: keyframes.map((mark) => mark.version),
    y: keyframes.map(() => -1),
    text: keyframes.map((mark) => `Keyframe ${count(mark.version)}, ${bytes(mark.nbytes)}`),
    hovertemplate: "%{text}<extra></extra>",
    cliponaxis: false,
    marker: { color: colour, size: 9, symbol: "diamond" },
  };
}

function summary({ keyframes, patches, merged, nbytes }) {
  return (
    `${plural(keyframes, "keyframe")}, ${plural(patches - merged, "patch", "patches")} and ${count(merged)} merged: ` +
    `${bytes(nbytes)} in store.`
  );
}
