// A chart of one statistic of one behavior, with a line for each run.

import { Answer } from "./api.js";
import { chartMenu } from "./chart_menu.js";
import { state } from "./state.js";
import { Component, createRef, duration, html } from "./util.js";
import { css, KINDS, options, pointer, prepared, short } from "./uplot/plot.js";

const HEIGHT = 200, LARGE = 420;
const UNITS = { "Perf/CPU": "cores", "Perf/Memory": "GiB", "Perf/GPU": "share", "Perf/GPU Memory": "GiB", "Perf/Update Seconds": "s" };
const tip = document.getElementById("tip");
const charts = new Set();

// An exponential moving average with bias correction, as in Adam.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

export function clock(seconds) {
  if (Math.abs(seconds) < 1e-9) return "0";
  for (const [size, letter] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (Math.abs(seconds) >= size) return `${short(seconds / size)} ${letter}`;
  return duration(seconds);
}

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) target.chart.see(isIntersecting);
}, { rootMargin: "200px" });

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) target.chart.resize();
});

// `frame` is shared by all charts of a view. It has `runs`, `color(run)`, `span`, `zoom(span)` and `seeds`, which says
// whether runs that differ only in their seed are shown as one line.
export class Chart extends Component {
  isSeen = false;
  lines = [];
  figure = createRef();
  plotted = createRef();
  #answer = new Answer("series", 1000, () => this.forceUpdate());
  #plot = null;
  #form = "";
  #drawn = "";
  #value = null;

  componentDidMount() {
    this.place = this.plotted.current;
    this.place.chart = this.figure.current.chart = this;
    seen.observe(this.figure.current);
    sizes.observe(this.place);
    charts.add(this);
  }

  componentWillUnmount() {
    charts.delete(this);
    seen.unobserve(this.figure.current);
    sizes.unobserve(this.place);
    this.#answer.end();
    this.#plot?.destroy();
  }

  get name() {
    return this.props.tag.slice(this.props.tag.indexOf("/") + 1);
  }

  get title() {
    const unit = UNITS[this.props.tag] ?? (this.props.tag.endsWith("per Second") ? "1/s" : "");
    return unit ? `${this.name} (${unit})` : this.name;
  }

  // The user's settings for the y axis.
  get axis() {
    return state.axes[this.props.tag] ?? { log: false, low: null, high: null };
  }

  get isHistogram() {
    return this.lines.some((line) => line.bands);
  }

  // Notes on how the values are displayed, such as smoothing or a logarithmic axis.
  get notes() {
    const isSmoothed = this.lines.some((line) => line.smooth);
    return [this.isHistogram && "percentiles", isSmoothed && `smoothed ${state.smoothing.toFixed(2)}`, KINDS[this.drawing?.kind]]
      .filter(Boolean).join(", ");
  }

  question(points) {
    const { behavior, tag, frame: { runs, span, seeds } } = this.props, [from, to] = span ?? [null, null];
    return { behavior, tag, run: runs, from, to, by: state.byTime ? "time" : "step", points, seeds: seeds ? "together" : null };
  }

  // Converts the server's answer to lines.
  linesOf(answer) {
    const { runs, color } = this.props.frame, x = state.byTime ? "times" : "steps";
    return runs.filter((id) => answer[id]?.[x]?.length).map((id) => {
      const line = { name: id, color: color(id), x: answer[id][x], ...answer[id] };
      const weight = line.bands ? 0 : state.smoothing; // do not smooth the median of a histogram
      if (!(weight > 0) || line.mean.length < 3) return line;
      // The interval over seeds is smoothed like their mean, but the minimum and maximum of a single run are not.
      const ends = line.seeds && [smoothed(line.low, weight), smoothed(line.high, weight)];
      return { ...line, smooth: smoothed(line.mean, weight), ends };
    });
  }

  render({ tag }, { isLarge }) {
    const { place, props: { frame } } = this;
    if (this.isSeen) {
      const points = Math.floor(place.clientWidth * (frame.runs.length > 4 ? 0.7 : 1) / 50) * 50; // rounded, so that it is the same for similar widths
      this.#answer.pause = frame.seeds ? 5000 : 1000; // the server needs longer for an interval than for a curve
      this.#answer.latest(this.question(Math.max(100, Math.min(2000, points))));
    }
    const settings = JSON.stringify([this.axis, state.smoothing, state.byTime, state.logX, isLarge, frame.span, frame.runs,
      frame.runs.map(frame.color), css("--soft")]);
    if (this.#answer.value && (settings !== this.#drawn || this.#answer.value !== this.#value)) {
      this.#drawn = settings;
      this.#value = this.#answer.value;
      this.lines = this.linesOf(this.#value);
      this.drawing = prepared(this.lines, { isLog: this.axis.log, isLogX: state.logX });
    }
    const at = (x) => (state.byTime ? clock(x) : `step ${x}`);
    const values = this.lines.map(({ name, x, mean }) => `${name}: ${short(mean.at(-1))} at ${at(x.at(-1))}`);
    const label = [`${this.title} over ${state.byTime ? "time" : "steps"}`, ...values].join("; ");
    const about = this.isHistogram && "The line is the median. The bands contain the middle 50%, the middle 90% and all values.";
    return html`<figure ref=${this.figure} class=${isLarge ? "chart large" : "chart"}>
      <figcaption><span title=${tag}>${this.title} <small title=${about || null}>${this.notes}</small></span>
        <span class="tools">${chartMenu(this)}
          <button type="button" class="icon" title=${isLarge ? "Smaller" : "Larger"} aria-label=${`Larger: ${tag}`}
            onclick=${() => this.setState({ isLarge: !isLarge })}>${isLarge ? "⤡" : "⤢"}</button></span></figcaption>
      <div ref=${this.plotted} class="plot" role="img" aria-label=${label}></div></figure>`;
  }

  componentDidUpdate() {
    if (this.drawing) this.draw();
  }

  see(isSeen) {
    this.isSeen = isSeen;
    if (isSeen) this.forceUpdate();
  }

  // Marks the data as outdated. It is requested again when the chart is visible.
  stale() {
    this.#answer.stale();
    if (this.isSeen) this.forceUpdate();
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.#plot && width && width !== this.#plot.width) this.#plot.setSize({ width, height: this.#plot.height });
    if (this.isSeen) this.forceUpdate(); // another width needs another number of points
  }

  options(width, height, y) {
    const { low, high } = this.axis;
    return options(this.drawing, { size: [width, height], x: state.byTime ? "time since the first summary" : "steps", y,
      format: state.byTime ? clock : short, span: () => this.props.frame.span, limits: [low, high], isLogX: state.logX });
  }

  // Creates the plot again if lines, colors or axes have changed, and otherwise only updates its data.
  draw() {
    const { data, ...looks } = this.drawing, { isLarge } = this.state;
    if (data === this.data) return;
    this.data = data;
    const form = JSON.stringify([looks, this.axis, state.byTime, state.logX, isLarge, css("--soft")]);
    if (this.#plot && form === this.#form) return this.#plot.setData(data);
    this.#form = form;
    this.#plot?.destroy();
    this.#plot = this.lines.length ? new uPlot({
      ...this.options(this.place.clientWidth, isLarge ? LARGE : HEIGHT, isLarge && this.title), ...this.#interaction() }, data, this.place) : null;
  }

  // Draws a plot of this size with all titles outside the visible page, and returns its canvas.
  async picture(width, height) {
    const place = document.body.appendChild(document.createElement("div"));
    place.className = "offscreen";
    const canvas = await new Promise((done) => new uPlot({ ...this.options(width, height, this.title), cursor: { show: false },
      hooks: { ready: [(plot) => done(plot.ctx.canvas)] } }, this.drawing.data, place));
    place.remove();
    return canvas;
  }

  #interaction() {
    const zoom = (span) => this.props.frame.zoom(span);
    const hooks = pointer(tip, () => this.lines, ({ x }, at) => (state.byTime ? clock(x[at]) : `step ${x[at].toLocaleString("en")}`));
    hooks.ready.push((plot) => plot.over.addEventListener("dblclick", () => zoom(null)));
    hooks.setSelect = [(plot) => {
      const { left, width } = plot.select;
      if (width < 5 || !plot.over.matches(":hover")) return;
      zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
      for (const chart of charts) chart.#plot?.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    }];
    const sync = { key: this.props.frame.key, setSeries: false }, drag = { x: true, y: false, setScale: false };
    return { cursor: { sync, drag, points: { show: false }, y: false }, hooks };
  }
}

export function staleCharts(runs) {
  for (const chart of charts) if (chart.props.frame.runs.some((id) => runs.includes(id))) chart.stale();
}
