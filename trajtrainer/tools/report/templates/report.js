// Draws each chart when it scrolls into view, and shows the values under the pointer.
import { options, pointer, prepared } from "../../uplot/plot.js";

const HEIGHT = 235;
const tip = document.getElementById("tip");

class Chart {
  #plot = null;

  constructor(figure) {
    this.place = figure.querySelector(".plot");
    this.lines = JSON.parse(figure.querySelector("script").textContent);
    const tag = figure.querySelector("figcaption").textContent;
    this.name = tag.slice(tag.indexOf("/") + 1, tag.indexOf("/") + 31); // label of the value axis
  }

  draw() {
    const drawing = prepared(this.lines), size = [this.place.clientWidth, HEIGHT];
    const hooks = pointer(tip, () => this.lines, ({ x }, at) => `step ${x[at].toLocaleString("en")}`);
    const cursor = { drag: { x: false, y: false }, points: { show: false }, y: false };
    this.#plot?.destroy();
    this.#plot = new uPlot({ ...options(drawing, { size, x: "steps", y: this.name }), cursor, hooks }, drawing.data, this.place);
  }

  resize() {
    const width = this.place.clientWidth;
    if (!width) return; // in a collapsed section
    if (!this.#plot) this.draw();
    else if (width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
  }

  recolor() {
    if (this.#plot) this.draw();
  }
}

const charts = new Map([...document.querySelectorAll(".chart")].map((figure) => [figure, new Chart(figure)]));
const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) charts.get(entry.target).resize();
});
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    sizes.observe(target); // also calls its callback immediately, which draws the chart
  }
}, { rootMargin: "300px" });
for (const figure of charts.keys()) seen.observe(figure);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts.values()) chart.recolor();
});
addEventListener("beforeprint", () => {
  for (const chart of charts.values()) chart.resize();
});
