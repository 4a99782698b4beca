// One chart: a statistic of one behavior, in some runs.

import { get } from "./api.js";
import { chartMenu } from "./chart_menu.js";
import { state } from "./state.js";
import { css, duration, el, short } from "./util.js";

const HEIGHT = 200, LARGE = 420;
const LINEAR = 1, LOG = 3, SYMMETRIC = 4; // uPlot's kinds of scales; the last is linear around 0
const UNITS = { "Perf/CPU": "cores", "Perf/Memory": "GiB", "Perf/GPU": "share", "Perf/GPU Memory": "GiB", "Perf/Update Seconds": "s" };
const tip = document.getElementById("tip");
const charts = new Set();

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

// What all charts of a place have in common, `frame`: `runs()`, `color(run)`, `span()`, `zoom(span)` and `seeds()`,
// whether runs that differ only in their seed are one line.
export class Chart {
  #plot = null;
  #form = "";
  #request = null;
  #isStale = true;
  #lines = [];

  constructor(behavior, tag, frame) {
    this.behavior = behavior;
    this.tag = tag;
    this.frame = frame;
    this.name = tag.includes("/") ? tag.slice(tag.indexOf("/") + 1) : tag;
    this.isSeen = false;
    this.place = el("div", { class: "plot", role: "img", "aria-label": this.name });
    this.large = el("button", { type: "button", class: "icon", title: "Larger", "aria-label": `Larger: ${tag}`,
      onclick: () => this.#enlarge() }, "⤢");
    this.kind = el("small");
    this.element = el("figure", { class: "chart" },
      el("figcaption", {}, el("span", { title: tag }, this.title, " ", this.kind),
        el("span", { class: "tools" }, chartMenu(this), this.large)), this.place);
    this.place.chart = this.element.chart = this;
    seen.observe(this.element);
    sizes.observe(this.place);
    charts.add(this);
  }

  get title() {
    const unit = UNITS[this.tag] ?? (this.tag.endsWith("per Second") ? "1/s" : "");
    return unit ? `${this.name} (${unit})` : this.name;
  }

  // What the user has set for the y axis.
  get axis() {
    return state.axes[this.tag] ?? { log: false, low: null, high: null };
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
    this.large.title = isLarge ? "Smaller" : "Larger";
    this.#form = ""; // a large one has more titles
    this.draw();
    this.stale();
  }

  // Something has changed; it is asked for when it is seen.
  stale() {
    this.#isStale = true;
    if (this.isSeen) this.refresh();
  }

  async fetch(points, signal) {
    const [from, to] = this.frame.span() ?? [null, null];
    const runs = [...this.frame.runs()];
    const found = await get("series", {
      behavior: this.behavior, tag: this.tag, run: runs, from, to, by: state.byTime ? "time" : "step", points,
      seeds: this.frame.seeds() ? "together" : null,
    }, signal);
    return runs.filter((id) => found[id]?.mean.length).map((id) => ({ id, name: id, ...found[id] }));
  }

  async refresh() {
    if (!this.#isStale) return;
    this.#isStale = false;
    this.#request?.abort();
    const request = this.#request = new AbortController();
    const width = this.place.clientWidth * (this.frame.runs().length > 4 ? 0.7 : 1);
    try {
      const lines = await this.fetch(Math.max(100, Math.min(2000, Math.round(width))), request.signal);
      if (request.signal.aborted) return;
      this.#lines = lines;
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

  // Draws what is already known. The plot is made again where lines, colors or axes have changed.
  draw() {
    const { data, series, bands, kind, threshold } = this.#prepared();
    const isEmpty = this.#lines.length === 0;
    this.element.classList.toggle("empty", isEmpty);
    const isSmoothed = this.#lines.some((line) => line.smooth);
    const notes = [
      this.#lines.some((line) => line.bands) ? "percentiles" : "",
      isSmoothed ? `smoothed ${state.smoothing.toFixed(2)}` : "",
      { [LOG]: "log", [SYMMETRIC]: "log, linear around 0" }[kind],
    ].filter(Boolean);
    this.kind.textContent = notes.join(", ");
    this.kind.title = this.#lines.some((line) => line.bands) ?
      "The line is the median. The bands hold the middle 50%, the middle 90% and all values." : "";
    this.place.setAttribute("aria-label", [`${this.title} over ${state.byTime ? "time" : "steps"}`, ...this.#lines.map((line) =>
      `${line.name}: ${short(line.mean.at(-1))} at ${state.byTime ? clock(line.x.at(-1)) : `step ${line.x.at(-1)}`}`)].join("; "));
    const isLarge = this.element.classList.contains("large");
    const form = JSON.stringify([series, bands, kind, kind === SYMMETRIC && threshold, this.axis, state.byTime, state.logX, isLarge, css("--soft")]);
    if (this.#plot && form === this.#form) {
      this.#plot.setData(data);
      return;
    }
    this.#form = form;
    this.#plot?.destroy();
    this.place.replaceChildren();
    if (isEmpty) { this.#plot = null; return; }
    const options = this.#options(series, bands, kind, threshold, this.place.clientWidth, isLarge ? LARGE : HEIGHT, isLarge);
    this.#plot = new uPlot({ ...options, ...this.#interaction() }, data, this.place);
  }

  // A plot of this size with all titles, not part of the page, once it is drawn.
  async picture(width, height) {
    const { data, series, bands, kind, threshold } = this.#prepared();
    const place = document.body.appendChild(el("div", { class: "offscreen" }));
    const options = this.#options(series, bands, kind, threshold, width, height, true);
    const canvas = await new Promise((done) =>
      new uPlot({ ...options, cursor: { show: false }, hooks: { ready: [(plot) => done(plot.ctx.canvas)] } }, data, place));
    place.remove();
    return { canvas, lines: this.#lines };
  }

  // What uPlot draws, in its form: for each line the bands, single seeds, and the line in front of them.
  #prepared() {
    const tables = [], series = [{}], bands = [];
    const banded = Math.sqrt(this.#lines.filter((line) => line.low).length);
    let isPositive = true, largest = 0;
    for (const line of this.#lines) {
      line.x = state.byTime ? line.times : line.steps;
      const weight = line.bands ? 0 : state.smoothing; // a median between its percentiles is not smoothed
      const smooth = (values) => (weight > 0 && values.length > 2 ? smoothed(values, weight) : null);
      line.smooth = smooth(line.mean);
      const stroke = css(`--c${this.frame.color(line.id)}`);
      const columns = [line.x];
      // The interval of several seeds moves with their mean; the extremes of single points stay as they are.
      const ends = line.seeds && line.smooth ? [smooth(line.low), smooth(line.high)] : [line.low, line.high];
      const spreads = [line.low ? ends : null, ...(line.bands ?? [])].filter(Boolean);
      for (const [low, high] of spreads) {
        bands.push({ series: [series.length, series.length + 1], fill: faded(stroke, (line.bands ? 0.16 : 0.22) / banded) });
        series.push({ points: { show: false } }, { points: { show: false } });
        columns.push(high, low);
      }
      const points = { show: line.mean.length < 2, fill: stroke, size: 6 };
      const thin = { stroke: faded(stroke, 0.28), width: 1, points: { show: false } };
      if (line.smooth) {
        series.push({ ...thin, stroke: faded(stroke, 0.45) });
        columns.push(line.mean);
      }
      tables.push(columns);
      for (const [x, values] of line.seeds ?? []) {
        series.push(thin);
        tables.push([x, values]);
      }
      series.push({ stroke, width: line.smooth || line.seeds ? 2 : 1.6, points });
      tables.push([line.x, line.smooth ?? line.mean]);
      for (const value of [line.mean, line.low ?? [], line.high ?? [], ...(line.seeds ?? []).map(([, values]) => values)].flat()) {
        isPositive &&= value > 0;
        largest = Math.max(largest, Math.abs(value));
      }
    }
    const some = state.logX ? tables.map(positive) : tables;
    const data = some.length ? uPlot.join(some) : [[]];
    // A logarithmic axis of values below 0 has three powers of ten on each side, and is linear between those.
    const threshold = 10 ** (Math.ceil(Math.log10(largest || 1)) - 3);
    return { data, series, bands, kind: !this.axis.log ? LINEAR : isPositive ? LOG : SYMMETRIC, threshold };
  }

  #options(series, bands, kind, threshold, width, height, hasTitles) {
    const soft = css("--soft"), font = "11px system-ui, sans-serif";
    const axis = { stroke: soft, font, ticks: { show: false }, grid: { stroke: css("--grid"), width: 1 },
      labelFont: "600 11px system-ui, sans-serif", labelGap: 2, labelSize: 16 };
    const filter = (_, splits) => splits;
    const powers = { filter, splits: (_, number, low, high) => powersOfTen(low, high) };
    const powersOnBothSides = { filter, splits: (_, number, low, high) => {
      const [left, right] = [-low, high].map((end) => (end >= threshold ? powersOfTen(threshold, end) : []));
      return [...left.map((value) => -value).reverse(), 0, ...right];
    } };
    const { low: bottom, high: top } = this.axis;
    const rangeY = (_, low, high) => {
      if (low === null || low === undefined) [low, high] = [1, 10];
      const around = kind === LOG ? padded(low, high) : uPlot.rangeNum(low, high, 0.1, true);
      const found = [kind === LOG && !(bottom > 0) ? around[0] : bottom ?? around[0], top ?? around[1]];
      return found[0] < found[1] ? found : around;
    };
    const rangeX = (_, low, high) => {
      const span = this.frame.span();
      if (low === null || low === undefined) [low, high] = [1, 10];
      if (span && state.logX) return span[1] > 0 ? [span[0] > 0 ? span[0] : span[1] / 1000, span[1]] : [low, high];
      if (span) return span;
      return low === high ? (state.logX ? [low / 2, low * 2] : [low - 1, high + 1]) : [low, high];
    };
    return {
      width, height, series, bands,
      legend: { show: false },
      padding: [8, 18, 0, 0],
      scales: { x: { time: false, range: rangeX, ...(state.logX ? { distr: LOG } : {}) }, y: { distr: kind, range: rangeY, asinh: threshold } },
      axes: [
        { ...axis, ...(state.logX ? powers : {}), size: 22, labelGap: 0, labelSize: 14, space: 60, label: state.byTime ? "time since the first summary" : "steps",
          values: (_, values) => values.map((each) => (each === null ? "" : state.byTime ? clock(each) : short(each))) },
        { ...axis, ...{ [LOG]: powers, [SYMMETRIC]: powersOnBothSides }[kind], size: wide, space: 32, ...(hasTitles ? { label: this.title } : {}),
          values: (_, values) => values.map((each) => (each === null ? "" : short(each))) },
      ],
    };
  }

  #interaction() {
    return {
      cursor: { sync: { key: this.frame.key, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
      hooks: {
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 5 || !plot.over.matches(":hover")) return;
          this.frame.zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
          for (const chart of charts) chart.#plot?.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        setCursor: [(plot) => this.#tell(plot)],
        ready: [(plot) => {
          plot.over.addEventListener("dblclick", () => this.frame.zoom(null));
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
      const range = line.low && line.low[index] !== line.high[index] ? `${short(line.low[index])} to ${short(line.high[index])}` : null;
      const key = [el("i", { class: `key c${this.frame.color(line.id)}` }), el("span", {}, line.name)];
      if (line.bands) {
        const between = line.bands.map(([low, high]) => `${short(low[index])} to ${short(high[index])}`);
        return el("div", { class: "spread" }, ...key,
          el("b", {}, `median ${short(line.mean[index])}`), el("small", {}, `50%: ${between[1]}`),
          el("small", {}, `90%: ${between[0]}`), el("small", {}, `all: ${range ?? short(line.mean[index])}`));
      }
      if (line.seeds)
        return el("div", {}, ...key, el("b", {}, short(line.mean[index])), range ? el("small", {}, `95%: ${range}`) : null);
      const exact = range ?? short(line.mean[index]);
      return el("div", {}, ...key, el("b", {}, line.smooth ? short(line.smooth[index]) : exact),
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

// The width of an axis by its longest number, in pixels.
function wide(_, values) {
  return Math.max(48, 14 + 6.5 * Math.max(0, ...(values ?? []).map((text) => text.length)));
}

function padded(low, high) {
  const factor = low === high ? 3 : Math.max(1.1, (high / low) ** 0.05);
  return [low / factor, high * factor];
}

// At most about nine; within two powers of ten also 2 and 5 times each.
function powersOfTen(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const step = Math.ceil((last - first) / 8), factors = last - first <= 2 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = first; power <= last; power += step)
    for (const factor of factors) found.push(Number(`${factor}e${power}`));
  return found.filter((value) => value >= low && value <= high);
}

// A logarithmic axis has no place for 0.
function positive([x, ...columns]) {
  const first = x.findIndex((value) => value > 0);
  return first < 0 ? [[], ...columns.map(() => [])] : [x, ...columns].map((values) => values.slice(first));
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

export function staleAll(frame) {
  for (const chart of charts) if (chart.frame === frame) chart.stale();
}
