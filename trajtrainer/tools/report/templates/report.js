"use strict";
// Draws each chart once it comes into view, and shows the numbers under the pointer.
const HEIGHT = 235;
const tip = document.getElementById("tip");

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function faded(hex, share) {
  return hex + Math.round(255 * share).toString(16).padStart(2, "0");
}

function short(value) {
  const size = Math.abs(value);
  for (const [large, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= large && size < 1e12) return +(value / large).toPrecision(4) + letter;
  return String(+value.toPrecision(4));
}

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle; else high = middle;
  }
  return step - steps[low] < steps[high] - step ? low : high;
}

class Chart {
  #place;
  #lines;
  #name; // of the values: the tag without its category
  #plot = null;

  constructor(figure) {
    this.#place = figure.querySelector(".plot");
    this.#lines = JSON.parse(figure.querySelector("script").textContent);
    const tag = figure.querySelector("figcaption").textContent;
    this.#name = tag.slice(tag.indexOf("/") + 1, tag.indexOf("/") + 31);
  }

  // For one group: the band, each seed, and the line in front of them.
  draw() {
    const tables = [], series = [{}], bands = [];
    for (const line of this.#lines) {
      const stroke = css(`--c${line.color}`), isPoint = line.steps.length < 2;
      if (line.low) {
        bands.push({ series: [series.length, series.length + 1], fill: faded(stroke, 0.18) });
        series.push({ points: { show: false } }, { points: { show: false } });
        tables.push([line.steps, line.high, line.low]);
      }
      for (const [steps, values] of line.seeds) {
        series.push({ stroke: faded(stroke, 0.35), width: 1, points: { show: false } });
        tables.push([steps, values]);
      }
      series.push({ stroke, width: 2, points: { show: isPoint, fill: stroke, size: 6 } });
      tables.push([line.steps, line.middle]);
    }
    this.#plot?.destroy();
    const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
    this.#plot = new uPlot(this.#options(series, bands), data, this.#place);
  }

  resize() {
    const width = this.#place.clientWidth;
    if (!width) return; // in a section that is closed
    if (!this.#plot) this.draw();
    else if (width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
  }

  recolor() {
    if (this.#plot) this.draw();
  }

  #options(series, bands) {
    const axis = { stroke: css("--soft"), font: "11px system-ui, sans-serif", ticks: { show: false },
      grid: { stroke: css("--grid"), width: 1 }, values: (_, values) => values.map(short),
      labelFont: "11px system-ui, sans-serif", labelSize: 15, labelGap: 0 };
    return {
      width: this.#place.clientWidth, height: HEIGHT, series, bands, legend: { show: false }, padding: [8, 18, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) } },
      axes: [{ ...axis, label: "step", size: 26, space: 60 }, { ...axis, label: this.#name, size: 54, space: 32 }],
      cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
      hooks: {
        setCursor: [(plot) => this.#show(plot)],
        ready: [(plot) => plot.over.addEventListener("pointerleave", () => (tip.hidden = true))],
      },
    };
  }

  #show(plot) {
    const { left, top } = plot.cursor;
    tip.hidden = true;
    if (!(left >= 0) || !plot.over.matches(":hover")) return;
    const step = plot.posToVal(left, "x"), reach = (plot.scales.x.max - plot.scales.x.min) / 50;
    const lines = this.#lines.filter(({ steps }) => step >= steps[0] - reach && step <= steps[steps.length - 1] + reach);
    if (!lines.length) return;
    const title = document.createElement("small");
    title.textContent = `step ${lines[0].steps[nearest(lines[0].steps, step)].toLocaleString("en")}`;
    tip.replaceChildren(title, ...lines.map((line) => {
      const at = nearest(line.steps, step), [row, key, name, value] = ["div", "i", "span", "b"].map((each) => document.createElement(each));
      key.className = `c${line.color}`;
      name.textContent = line.name;
      value.textContent = short(line.middle[at]);
      if (line.low && line.low[at] !== line.high[at]) value.textContent += ` (${short(line.low[at])} to ${short(line.high[at])})`;
      row.append(key, name, value);
      return row;
    }));
    tip.hidden = false;
    const box = plot.over.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left + left + 14, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(box.top + top + 14, innerHeight - tip.offsetHeight - 4))}px`;
  }
}

const charts = new Map();
for (const figure of document.querySelectorAll(".chart")) charts.set(figure, new Chart(figure));

const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) charts.get(entry.target).resize();
});
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    sizes.observe(target); // which calls at once, too
  }
}, { rootMargin: "300px" });
for (const figure of charts.keys()) seen.observe(figure);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts.values()) chart.recolor();
});
addEventListener("beforeprint", () => {
  for (const chart of charts.values()) chart.resize();
});
