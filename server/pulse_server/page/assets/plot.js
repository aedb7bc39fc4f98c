// Loads plotly from the service itself, and gives every plot the page's own looks.

let loading = null;

// Resolves to plotly; rejects where the service has none.
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const address = document.body.dataset.plotly;
    if (!address) {
      reject(new Error("The service has no plotly installed: pip install 'pulse-registry[server]'."));
      return;
    }
    const script = document.createElement("script");
    script.src = address;
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      loading = null;
      reject(new Error("The plots' script did not load. Reload the page to try again."));
    });
    document.head.append(script);
  });
  return loading;
}

// The colours of the style sheet, for light or dark as it is now.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "rule", "ground", "patch", "keyframe", "merged", "full"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// Text of others as a plot shows it: plotly takes some tags in a text for markup.
export function plainText(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

export const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false, showTips: false };

// Drawing over a plot zooms; not by touch, where it would keep the page from scrolling.
export function dragMode() {
  return matchMedia("(pointer: coarse)").matches ? false : "zoom";
}

export function axis(ink, more = {}) {
  return {
    gridcolor: ink.rule,
    linecolor: ink.rule,
    tickcolor: ink.rule,
    zeroline: false,
    tickfont: { color: ink.muted, size: 12 },
    fixedrange: true,
    ...more,
  };
}

export function baseLayout(ink, narrow) {
  const family = getComputedStyle(document.body).fontFamily;
  return {
    paper_bgcolor: ink.ground,
    plot_bgcolor: ink.ground,
    font: { family, size: 12, color: ink.ink },
    margin: { l: narrow ? 58 : 76, r: narrow ? 8 : 16, t: 8, b: 34 },
    showlegend: false,
    dragmode: dragMode(),
    hoverlabel: { bgcolor: ink.ground, bordercolor: ink.rule, font: { family, size: 12, color: ink.ink } },
  };
}

// The x axis that all plots share: versions, whole numbers.
export function versionAxis(ink, window, more = {}) {
  const span = window.last - window.first + 1;
  const whole = span <= 8 ? { dtick: 1 } : {};
  return axis(ink, {
    range: [window.first - 0.5, window.last + 0.5],
    fixedrange: false,
    tickformat: ",d",
    nticks: 10,
    ...whole,
    ...more,
  });
}

// Hears what the reader draws over a plot.
export function onZoom(node, show) {
  node.on("plotly_relayout", (change) => {
    const first = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0];
    const last = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
    if (first !== undefined && last !== undefined) show(first, last);
  });
}

// About five marks on a logarithmic axis from `low` to `high`, of those in `nice`.
export function logTicks(low, high, nice, format) {
  const inside = nice.filter((value) => value >= low && value <= high);
  const every = Math.ceil(inside.length / 5);
  const kept = inside.filter((_, place) => place % every === 0);
  return { tickvals: kept, ticktext: kept.map(format) };
}

export const NICE_BYTES = [];
for (let power = 0; power < 15; power += 1) NICE_BYTES.push(10 ** power);

export const NICE_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 180, 600, 1800, 3600, 10800, 43200, 86400, 604800, 2592000];
