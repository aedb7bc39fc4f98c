// The heat map of layers by versions, on a canvas: one column a version, one row a layer, darker where more cells change.

import { brief, count, percent, plural } from "./format.js";
import { baseLayout, colours } from "./plot.js";

const BOTTOM = 22; // pixels for the versions' numbers
const LABEL = 13; // pixels that a row's name needs
const SCALE = 8; // steps of the legend

export class Heatmap {
  #part;
  #canvas;
  #told;
  #at = null; // what lies where, for the pointer

  constructor(part) {
    this.#part = part;
    this.#canvas = part.querySelector("canvas");
    this.#told = part.querySelector(".layers-told");
    for (const name of ["pointermove", "pointerdown"]) this.#canvas.addEventListener(name, (event) => this.#point(event));
    this.#canvas.addEventListener("pointerleave", () => this.#tell(""));
  }

  draw({ rows, steps }, window) {
    const node = this.#canvas.parentElement;
    const ink = colours();
    const { margin, font } = baseLayout(ink, node.clientWidth < 600);
    const width = Math.max(100, node.clientWidth);
    const height = node.clientHeight;
    const context = sharp(this.#canvas, width, height);
    context.font = `12px ${font.family}`;
    const { first, last } = window;
    const place = { left: margin.l, right: width - margin.r, top: 2, bottom: height - BOTTOM, first, last };
    const most = Math.max(0, ...steps.flatMap((step) => step.changed?.map((n, row) => n / Math.max(1, rows[row].cells)) ?? []));
    for (const step of steps) drawStep(context, place, step, rows, most, ink);
    drawRows(context, place, rows, ink);
    drawVersions(context, place, ink);
    this.#at = { place, rows, steps };
    const sentence = summary(rows, steps);
    this.#part.querySelector(".layers-sub").textContent = sentence;
    node.setAttribute("aria-label", `Changed cells by layer, versions ${count(first)} to ${count(last)}. ${sentence}`);
    this.#legend(most, ink, rows.length > 0);
  }

  #legend(most, ink, shown) {
    const legend = this.#part.querySelector(".layers-legend");
    legend.hidden = !shown;
    const shades = [...Array(SCALE + 1).keys()].map((n) => shade(ink, n / SCALE));
    legend.querySelector(".shades").style.background = `linear-gradient(to right, ${shades.join(", ")})`;
    legend.querySelector(".middle").textContent = share(most / 4);
    legend.querySelector(".most").textContent = share(most);
  }

  #point(event) {
    if (this.#at === null) return;
    const { place, rows, steps } = this.#at;
    const version = Math.round(place.first - 0.5 + ((event.offsetX - place.left) / (place.right - place.left)) * (place.last - place.first + 1));
    const number = Math.floor(((event.offsetY - place.top) / (place.bottom - place.top)) * rows.length);
    const step = steps.find(({ base, target }) => version > base && version <= target);
    const row = rows[number];
    if (!step || !row || event.offsetX < place.left) this.#tell("");
    else this.#tell(told(step, row, number));
  }

  #tell(text) {
    if (this.#told.textContent !== text) this.#told.textContent = text;
  }
}

// A canvas of so many pixels of the page, as sharp as the screen is.
function sharp(canvas, width, height) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, height);
  return context;
}

function across(place, version) {
  return place.left + ((version - place.first + 0.5) / (place.last - place.first + 1)) * (place.right - place.left);
}

function drawStep(context, place, { base, target, changed }, rows, most, ink) {
  const left = Math.round(Math.max(place.left, across(place, base + 0.5)));
  const right = Math.round(Math.min(place.right, across(place, target + 0.5)));
  if (changed === null) {
    // Not known: a thin line in the middle, so that it is no layer without a change.
    context.fillStyle = ink.rule;
    context.fillRect(Math.floor((left + right) / 2), place.top, 1, place.bottom - place.top);
    return;
  }
  const tall = (place.bottom - place.top) / rows.length;
  changed.forEach((cells, row) => {
    context.fillStyle = shade(ink, most > 0 ? Math.sqrt(cells / Math.max(1, rows[row].cells) / most) : 0);
    // Whole pixels, so that no seam shows between neighbours; at least one, so that none is lost.
    const above = Math.round(place.top + row * tall);
    context.fillRect(left, above, Math.max(1, right - left), Math.max(1, Math.round(place.top + (row + 1) * tall) - above));
  });
}

function drawRows(context, place, rows, ink) {
  if (rows.length === 0) return;
  const tall = (place.bottom - place.top) / rows.length;
  const every = Math.max(1, Math.ceil(LABEL / tall));
  context.fillStyle = ink.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  rows.forEach((row, number) => {
    if (number % every) return;
    context.fillText(cut(context, short(row.name), place.left - 8), place.left - 6, place.top + (number + 0.5) * tall);
  });
}

function drawVersions(context, place, ink) {
  const span = place.last - place.first + 1;
  const room = Math.max(2, Math.floor((place.right - place.left) / 90));
  const every = nice(span / room);
  context.fillStyle = ink.muted;
  context.textAlign = "center";
  context.textBaseline = "top";
  for (let version = Math.ceil(place.first / every) * every; version <= place.last; version += every) {
    context.fillText(count(version), across(place, version), place.bottom + 6);
  }
}

// 1, 2 or 5 times a power of ten, at least `value`.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= value) ?? 1;
}

// Between the ground and the colour of patches; the square root, so that small shares differ, too.
function shade(ink, part) {
  return mix(ink.rule, ink.patch, 0.08 + 0.92 * Math.min(1, part), part <= 0 ? ink.ground : null);
}

function mix(from, to, part, none) {
  if (none !== null) return mix(none, from, 0.5, null);
  const [a, b] = [from, to].map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  return `rgb(${a.map((value, n) => Math.round(value + (b[n] - value) * part)).join(" ")})`;
}

function short(name) {
  return name.slice(name.lastIndexOf(".") + 1);
}

function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > room) end -= 1;
  return `${text.slice(0, end)}…`;
}

function share(part) {
  return percent(part, 1);
}

function told({ base, target, changed, why }, row, number) {
  const versions = target - base === 1 ? `Version ${count(target)}` : `Versions ${count(base)} → ${count(target)}`;
  if (changed === null) return `${versions}: ${WHY[why]}.`;
  const others = row.layers.filter((layer) => layer !== row.name);
  const rest = others.length ? ` (its groups go on in ${others.map(short).join(", ")})` : "";
  return `${versions}, ${row.name}${rest}: ${percent(changed[number], row.cells)} of ${brief(row.cells)} cells.`;
}

const WHY = {
  layout: "other tensors than the newest version shown",
  keyframe: "stored as a keyframe alone",
  gone: "its patch is gone, or damaged",
  large: "a layout of too many tensors",
};

function summary(rows, steps) {
  const known = steps.filter((step) => step.changed !== null);
  if (steps.some((step) => step.why === "large")) return "The layout has too many tensors for this map; pulse stats counts them.";
  if (known.length === 0) return "No patch between these versions tells what changed.";
  const shares = rows.map((row, number) => known.reduce((sum, step) => sum + step.changed[number], 0) / Math.max(1, row.cells * known.length));
  const most = shares.indexOf(Math.max(...shares));
  const least = shares.indexOf(Math.min(...shares));
  const lacking = steps.length - known.length;
  const unknown = lacking ? ` ${plural(lacking, "version")} not known.` : "";
  return `Most a version in ${rows[most].name}: ${share(shares[most])}; least in ${rows[least].name}: ${share(shares[least])}.${unknown}`;
}
