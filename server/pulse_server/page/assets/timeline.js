// The plots over versions: changed cells, bytes a version, and the time between pushes. They share one axis.

import { brief, bytes, clock, count, duration, mark, percent } from "./format.js";
import { CONFIG, NICE_BYTES, NICE_SECONDS, axis, baseLayout, colours, logTicks, onZoom, versionAxis } from "./plot.js";

const DOTTED = 120; // up to so many versions, each gets a dot
const LEAST_SECONDS = 0.001;

export class Timeline {
  #node;
  #plotly;

  constructor(node, plotly, onShow) {
    this.#node = node;
    this.#plotly = plotly;
    this.onShow = onShow;
  }

  async draw(history, window, full, chain) {
    const ink = colours();
    const narrow = this.#node.clientWidth < 600;
    const shown = history.between(window.first, window.last);
    const rows = [changedRow(shown, ink), bytesRow(shown, full, window, chain, ink, narrow), intervalRow(shown, history, ink)];
    const layout = {
      ...baseLayout(ink, narrow),
      height: this.#node.clientHeight,
      hovermode: "x unified",
      hoversubplots: "axis",
      annotations: rows.map((row, place) => titleOf(row, place, ink)),
      xaxis: versionAxis(ink, window, {
        anchor: "y3",
        unifiedhovertitle: { text: "Version %{x:,d}" },
        showspikes: true,
        spikemode: "across",
        spikethickness: 1,
        spikedash: "solid",
        spikecolor: ink.muted,
      }),
      yaxis: { ...rows[0].axis, domain: [0.71, 0.96] },
      yaxis2: { ...rows[1].axis, domain: [0.355, 0.605] },
      yaxis3: { ...rows[2].axis, domain: [0, 0.25] },
    };
    const first = this.#node.on === undefined;
    await this.#plotly.react(this.#node, rows.flatMap((row) => row.traces), layout, CONFIG);
    if (first) onZoom(this.#node, (from, to) => this.onShow(from, to));
    this.#node.setAttribute("aria-label", spoken(shown, history, window, full));
  }
}

function titleOf(row, place, ink) {
  const tops = [1, 0.645, 0.29];
  return {
    text: row.title,
    x: 0,
    y: tops[place],
    xref: "paper",
    yref: "paper",
    xanchor: "left",
    yanchor: "middle",
    showarrow: false,
    font: { size: 13, color: ink.ink },
  };
}

function line(shown, values, texts, colour, more = {}) {
  return {
    type: "scatter",
    mode: shown.length <= DOTTED ? "lines+markers" : "lines",
    x: shown.map((version) => version.version),
    y: values,
    text: texts,
    hovertemplate: "%{text}<extra></extra>",
    line: { color: colour, width: 1.5 },
    marker: { color: colour, size: 4 },
    connectgaps: false,
    ...more,
  };
}

function changedRow(shown, ink) {
  const patches = shown.filter((version) => version.kind === "patch");
  const values = patches.map((version) => (100 * version.changed) / version.cells);
  const texts = patches.map((v) => `${percent(v.changed, v.cells)} changed: ${brief(v.changed)} of ${brief(v.cells)} cells, step ${count(v.step)}`);
  const top = Math.max(0, ...values);
  return {
    title: "Changed cells",
    traces: [line(patches, values, texts, ink.patch, { yaxis: "y" })],
    axis: axis(ink, { range: [0, top ? top * 1.12 : 1], ticksuffix: " %", nticks: 5 }),
  };
}

function logAxis(ink, values, nice, format) {
  const lowest = values.length ? Math.min(...values) : 1;
  const [low, high] = [lowest / 2, Math.max(...values, lowest * 2) * 2];
  const ticks = logTicks(low, high, nice, (value) => mark(format(value)));
  return axis(ink, { type: "log", range: [Math.log10(low), Math.log10(high)], ...ticks });
}

// A version may be stored as both; the chain knows what each object takes.
function bytesRow(shown, full, window, chain, ink, narrow) {
  const known = new Map(chain.patches.filter((p) => p.target - p.base === 1).map((p) => [p.target, p.nbytes]));
  const patches = shown
    .filter((version) => version.kind === "patch")
    .map(({ version, nbytes }) => ({ version, nbytes: known.get(version) ?? nbytes }));
  const keyframes = chain.keyframes.filter((stored) => stored.version >= window.first && stored.version <= window.last);
  const sizes = [...patches, ...keyframes].map((stored) => stored.nbytes).concat(full ?? []).filter((size) => size > 0);
  const traces = [
    line(patches, patches.map((v) => v.nbytes || null), patches.map((v) => `${bytes(v.nbytes)} as a patch`), ink.patch, { yaxis: "y2" }),
    line(keyframes, keyframes.map((v) => v.nbytes || null), keyframes.map((v) => `${bytes(v.nbytes)} as a keyframe`), ink.keyframe, {
      yaxis: "y2",
      mode: "markers",
      cliponaxis: false,
      marker: { color: ink.keyframe, size: 8, symbol: "diamond" },
    }),
  ];
  if (full) {
    const ends = { x: [window.first - 0.5, window.last + 0.5], y: [full, full] };
    const dashes = { color: ink.full, width: 1.5, dash: "dash" };
    traces.push({ type: "scatter", mode: "lines", ...ends, yaxis: "y2", hoverinfo: "skip", line: dashes });
  }
  const dashed = narrow ? "; dashed: all weights" : ` beside all weights, ${bytes(full)} (dashed)`;
  return {
    title: `Bytes a version${full ? dashed : ""}`,
    traces,
    axis: logAxis(ink, sizes, NICE_BYTES, bytes),
  };
}

function intervalRow(shown, history, ink) {
  const later = shown.filter((version) => history.interval(version) !== null);
  const values = later.map((version) => Math.max(LEAST_SECONDS, history.interval(version)));
  const texts = later.map((v) => `${duration(history.interval(v))} after the one before, at ${clock(v.at)}`);
  return {
    title: "Time since the version before",
    traces: [line(later, values, texts, ink.patch, { yaxis: "y3" })],
    axis: logAxis(ink, values, NICE_SECONDS, duration),
  };
}

// What the plots show, for those who can't see them; the figures themselves are in the table below.
function spoken(shown, history, window, full) {
  const patches = shown.filter((version) => version.kind === "patch");
  if (patches.length === 0) return `Plots of versions ${window.first} to ${window.last}; no patch among them.`;
  const share = patches.map((version) => version.changed / version.cells);
  const sizes = patches.map((version) => version.nbytes);
  const range = (values, format) => `${format(Math.min(...values))} to ${format(Math.max(...values))}`;
  const beside = full ? `, of ${bytes(full)} that all weights take` : "";
  return (
    `Plots of versions ${count(window.first)} to ${count(window.last)}: ` +
    `${range(share, (part) => percent(part, 1))} of the cells changed; a patch took ${range(sizes, bytes)}${beside}; ` +
    `a version came about every ${duration(history.usualInterval())}.`
  );
}
