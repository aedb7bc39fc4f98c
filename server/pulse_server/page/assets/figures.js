// The plots of what trainers say of versions in numbers, such as the reward: one for each key, over the shared axis.

import { setText } from "./dom.js";
import { count } from "./format.js";
import { Numbers } from "./metadata.js";
import { CONFIG, axis, baseLayout, colours, onZoom, plainText, versionAxis } from "./plot.js";

const ROW_PX = 130;
const DOTTED = 120; // up to so many versions, each gets a dot
const LONGEST = 60; // characters of a key
const NAMED = 12; // keys that are told of those left out

export class Figures {
  #part;
  #node;
  #sub;
  #plotly;
  #onShow;
  #numbers = new Numbers();

  constructor(part, plotly, onShow) {
    this.#part = part;
    this.#node = part.querySelector(".figures");
    this.#sub = part.querySelector(".figures-sub");
    this.#plotly = plotly;
    this.#onShow = onShow;
  }

  async draw(history, window) {
    const { shown, others } = this.#numbers.of(history.between(window.first, window.last));
    this.#part.hidden = shown.length === 0;
    if (shown.length === 0) return;
    const ink = colours();
    const narrow = this.#node.clientWidth < 600;
    const height = 34 + ROW_PX * shown.length;
    this.#node.style.height = `${height}px`;
    setText(this.#sub, sentence(others));
    const last = shown.length - 1;
    const layout = {
      ...baseLayout(ink, narrow),
      height,
      hovermode: "x unified",
      hoversubplots: "axis",
      annotations: shown.map(({ key }, place) => titleOf(key, 1 - place / shown.length, ink)),
      xaxis: versionAxis(ink, window, {
        anchor: idOf("y", last),
        unifiedhovertitle: { text: "Version %{x:,d}" },
        showspikes: true,
        spikemode: "across",
        spikethickness: 1,
        spikedash: "solid",
        spikecolor: ink.muted,
      }),
    };
    for (let place = 0; place <= last; place += 1) {
      const top = 1 - place / shown.length;
      layout[place ? `yaxis${place + 1}` : "yaxis"] = axis(ink, { domain: [top - 0.8 / shown.length, top - 0.16 / shown.length], nticks: 4 });
    }
    const traces = shown.map(({ points }, place) => line(points, idOf("y", place), ink));
    const first = this.#node.on === undefined;
    await this.#plotly.react(this.#node, traces, layout, CONFIG);
    if (first) onZoom(this.#node, (from, to) => this.#onShow(from, to));
    this.#node.setAttribute("role", "img");
    this.#node.setAttribute("aria-label", spoken(shown, window));
  }
}

function idOf(letter, place) {
  return place ? `${letter}${place + 1}` : letter;
}

function line(points, yaxis, ink) {
  return {
    type: "scatter",
    mode: points.length <= DOTTED ? "lines+markers" : "lines",
    x: points.map(({ version }) => version),
    y: points.map(({ value }) => value),
    text: points.map(({ value, step }) => `${figure(value)}, step ${count(step)}`),
    hovertemplate: "%{text}<extra></extra>",
    line: { color: ink.patch, width: 1.5 },
    marker: { color: ink.patch, size: 4 },
    yaxis,
  };
}

function titleOf(key, y, ink) {
  return { text: plainText(brief(key)), x: 0, y, xref: "paper", yref: "paper", xanchor: "left", yanchor: "top", yshift: 4, showarrow: false, font: { size: 13, color: ink.ink } };
}

function brief(key) {
  return key.length > LONGEST ? `${key.slice(0, LONGEST - 1)}…` : key;
}

function figure(value) {
  return String(Number(value.toPrecision(6)));
}

function sentence(others) {
  if (others.length === 0) return "Numbers that the trainer gave each push.";
  const named = others.slice(0, NAMED).map(brief).join(", ");
  return `Numbers that the trainer gave each push. Not shown: ${named}${others.length > NAMED ? ` and ${count(others.length - NAMED)} more` : ""}.`;
}

// For those who can't see the plots; the table below has the figures of the newest versions.
function spoken(shown, window) {
  const ranges = shown.map(({ key, points }) => {
    if (points.length === 0) return `${brief(key)}: none`;
    const values = points.map(({ value }) => value);
    const range = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
    return `${brief(key)} ${range.map(figure).join(" to ")}`;
  });
  return `Plots of metadata of versions ${count(window.first)} to ${count(window.last)}: ${ranges.join("; ")}.`;
}
