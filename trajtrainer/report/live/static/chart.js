// One chart: a statistic of one behavior, in every run that is shown.

import { get } from "./api.js";
import { color, state } from "./state.js";
import { duration, el, short } from "./util.js";

const HEIGHT = 190, LARGE = 420;
const tip = document.getElementById("tip");
const charts = new Set();

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function faded(hex, share) {
  return hex + Math.round(255 * share).toString(16).padStart(2, "0");
}

// An exponential mean, without the pull of its beginning (as Adam corrects its own).
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function nearest(sorted, wanted) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle; else high = middle;
  }
  return wanted - sorted[low] < sorted[high] - wanted ? low : high;
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = entry.target.chart;
    chart.isSeen = entry.isIntersecting;
    if (chart.isSeen) chart.refresh();
  }
}, { rootMargin: "200px" });

const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) entry.target.chart.resize();
});

export class Chart {
  #plot = null;
  #form = "";
  #request = null;
  #isStale = true;
  #lines = [];

  constructor(behavior, tag, zoom) {
    this.behavior = behavior;
    this.tag = tag;
    this.zoom = zoom;
    this.isSeen = false;
    this.place = el("div", { class: "plot" });
    this.large = el("button", { type: "button", class: "icon", title: "Larger", "aria-label": `Larger: ${tag}`,
      onclick: () => this.#enlarge() }, "⤢");
    const name = tag.includes("/") ? tag.slice(tag.indexOf("/") + 1) : tag;
    this.kind = el("small", { hidden: true, title: "The line is the median. The bands hold the middle 50%, the middle 90% and all values." },
      " percentiles");
    this.element = el("figure", { class: "chart" },
      el("figcaption", {}, el("span", { title: tag }, name, this.kind), this.large), this.place);
    this.place.chart = this.element.chart = this;
    seen.observe(this.element);
    sizes.observe(this.place);
    charts.add(this);
  }

  remove() {
    charts.delete(this);
    seen.unobserve(this.element);
    sizes.unobserve(this.place);
    this.#request?.abort();
    this.#plot?.destroy();
    this.element.remove();
  }

  #enlarge() {
    const isLarge = this.element.classList.toggle("large");
    this.large.textContent = isLarge ? "⤡" : "⤢";
    this.#plot?.setSize({ width: this.place.clientWidth, height: isLarge ? LARGE : HEIGHT });
    this.stale();
  }

  // Something has changed; it is asked for when it is seen.
  stale() {
    this.#isStale = true;
    if (this.isSeen) this.refresh();
  }

  async refresh() {
    if (!this.#isStale) return;
    this.#isStale = false;
    this.#request?.abort();
    const request = this.#request = new AbortController();
    const [from, to] = state.span ?? [null, null];
    const runs = [...state.shown];
    try {
      const found = await get("series", {
        behavior: this.behavior, tag: this.tag, run: runs, from, to, by: state.byTime ? "time" : "step",
        points: Math.max(100, Math.min(2000, Math.round(this.place.clientWidth * (runs.length > 4 ? 0.7 : 1)))),
      }, request.signal);
      if (request.signal.aborted) return;
      this.#lines = runs.filter((id) => found[id]?.mean.length).map((id) => ({ id, ...found[id] }));
      this.draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#isStale = true; // asked for again with the next news
    }
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.#plot && width && width !== this.#plot.width) this.#plot.setSize({ width, height: this.#plot.height });
  }

  // Draws what is there already: anew where lines, colors or axes are others.
  draw() {
    const tables = [], series = [{}], bands = [];
    const banded = Math.sqrt(this.#lines.filter((line) => line.low).length);
    for (const line of this.#lines) {
      line.x = state.byTime ? line.times : line.steps;
      const weight = line.bands ? 0 : state.smoothing; // a median between its percentiles is not smoothed
      line.smooth = weight > 0 && line.mean.length > 2 ? smoothed(line.mean, weight) : null;
      const stroke = css(`--c${color(line.id)}`);
      const columns = [line.x];
      const spreads = [line.low ? [line.low, line.high] : null, ...(line.bands ?? [])].filter(Boolean);
      for (const [low, high] of spreads) {
        bands.push({ series: [series.length, series.length + 1], fill: faded(stroke, (line.bands ? 0.16 : 0.22) / banded) });
        series.push({ points: { show: false } }, { points: { show: false } });
        columns.push(high, low);
      }
      const points = { show: line.mean.length < 2, fill: stroke, size: 6 };
      if (line.smooth) {
        if (!line.low) {
          series.push({ stroke: faded(stroke, 0.28), width: 1, points: { show: false } });
          columns.push(line.mean);
        }
        series.push({ stroke, width: 2, points });
        columns.push(line.smooth);
      } else {
        series.push({ stroke, width: 1.6, points });
        columns.push(line.mean);
      }
      tables.push(columns);
    }
    this.element.classList.toggle("empty", tables.length === 0);
    this.kind.hidden = !this.#lines.some((line) => line.bands);
    const data = tables.length === 0 ? [[]] : tables.length === 1 ? tables[0] : uPlot.join(tables);
    const form = JSON.stringify([series, bands, state.byTime, css("--soft")]);
    if (this.#plot && form === this.#form) {
      this.#plot.setData(data);
      return;
    }
    this.#form = form;
    this.#plot?.destroy();
    this.place.replaceChildren();
    this.#plot = tables.length ? new uPlot(this.#options(series, bands), data, this.place) : null;
  }

  #options(series, bands) {
    const axis = { stroke: css("--soft"), font: "11px system-ui, sans-serif", ticks: { show: false },
      grid: { stroke: css("--grid"), width: 1 } };
    return {
      width: this.place.clientWidth,
      height: this.element.classList.contains("large") ? LARGE : HEIGHT,
      series, bands,
      legend: { show: false },
      padding: [8, 18, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => state.span ?? (low === high ? [low - 1, high + 1] : [low, high]) } },
      axes: [
        { ...axis, size: 26, space: 60, values: (_, values) => values.map((each) => (state.byTime ? clock(each) : short(each))) },
        { ...axis, size: 48, space: 32, values: (_, values) => values.map((each) => short(each)) },
      ],
      cursor: { sync: { key: "x", setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
      hooks: {
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 5 || !plot.over.matches(":hover")) return;
          this.zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
          for (const chart of charts) chart.#plot?.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        setCursor: [(plot) => this.#tell(plot)],
        ready: [(plot) => {
          plot.over.addEventListener("dblclick", () => this.zoom(null));
          plot.over.addEventListener("pointerleave", () => (tip.hidden = true));
        }],
      },
    };
  }

  #tell(plot) {
    if (!plot.over.matches(":hover")) return;
    const { left, top } = plot.cursor;
    if (left === undefined || left < 0) { tip.hidden = true; return; }
    const x = plot.posToVal(left, "x");
    const reach = (plot.scales.x.max - plot.scales.x.min) / 40;
    const lines = this.#lines.filter((line) => x >= line.x[0] - reach && x <= line.x[line.x.length - 1] + reach);
    if (!lines.length) { tip.hidden = true; return; }
    const at = nearest(lines[0].x, x);
    const title = el("small", {}, state.byTime ? clock(lines[0].times[at]) : `step ${lines[0].steps[at].toLocaleString("en")}`);
    tip.replaceChildren(title, ...lines.map((line) => {
      const index = nearest(line.x, x);
      const exact = line.low && line.low[index] !== line.high[index] ?
        `${short(line.low[index])} to ${short(line.high[index])}` : short(line.mean[index]);
      const value = line.smooth ? short(line.smooth[index]) : exact;
      if (line.bands) {
        const between = line.bands.map(([low, high]) => `${short(low[index])} to ${short(high[index])}`);
        return el("div", { class: "spread" }, el("i", { class: `key c${color(line.id)}` }), el("span", {}, line.id),
          el("b", {}, `median ${short(line.mean[index])}`), el("small", {}, `50%: ${between[1]}`),
          el("small", {}, `90%: ${between[0]}`), el("small", {}, `all: ${exact}`));
      }
      return el("div", {}, el("i", { class: `key c${color(line.id)}` }), el("span", {}, line.id), el("b", {}, value),
        line.smooth ? el("small", {}, exact) : null);
    }));
    tip.hidden = false;
    const box = plot.over.getBoundingClientRect(), beyond = 14;
    const wanted = box.left + left + beyond;
    const shownLeft = wanted + tip.offsetWidth > innerWidth - 4 ? box.left + left - tip.offsetWidth - beyond : wanted;
    tip.style.left = `${Math.max(4, shownLeft)}px`;
    tip.style.top = `${Math.max(4, Math.min(box.top + top + beyond, innerHeight - tip.offsetHeight - 4))}px`;
  }
}

export function clock(seconds) {
  if (Math.abs(seconds) < 1e-9) return "0";
  for (const [size, letter] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (Math.abs(seconds) >= size) return `${short(seconds / size)} ${letter}`;
  return duration(seconds);
}

export function redrawAll() {
  for (const chart of charts) chart.draw();
}

export function staleAll() {
  for (const chart of charts) chart.stale();
}
