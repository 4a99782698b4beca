// The menu of a chart: its axes, and files of it.

import { state, update } from "./state.js";
import { checkbox, copyButton, css, csv, decoded, el, fileName, menu, save } from "./util.js";

const MOST_POINTS = 4000; // of a line in a file
const WIDTH = 1200, HEIGHT = 640, EDGE = 24, LINE = 24;

export function chartMenu(chart) {
  return menu("⋯", `Axes and files: ${chart.tag}`, () => {
    const { log, low, high } = chart.axis;
    const set = (changes) => update({ axes: { ...state.axes, [chart.tag]: { ...chart.axis, ...changes } } });
    const command = plotCommand(chart);
    const shown = el("pre", { class: "command" }, command);
    return [
      checkbox("Logarithmic values", log, (isOn) => set({ log: isOn })),
      range("Values", [low, high], (ends) => set({ low: ends[0], high: ends[1] })),
      range(state.byTime ? "Seconds" : "Steps", chart.frame.span() ?? [null, null],
        (ends) => chart.frame.zoom(ends[0] !== null && ends[1] !== null && ends[0] < ends[1] ? ends : null)),
      el("div", { class: "row" },
        el("button", { type: "button", class: "plain", onclick: () => savePicture(chart) }, "Save PNG"),
        el("button", { type: "button", class: "plain", onclick: () => saveNumbers(chart) }, "Save CSV")),
      el("p", { class: "soft small" }, "As SVG or PDF, for print:"),
      shown, copyButton(() => command, shown, "Copy command"),
    ];
  });
}

function range(label, ends, onchange) {
  const boxes = ends.map((value, i) => el("input", { type: "number", step: "any", value, placeholder: i ? "highest" : "lowest",
    "aria-label": `${label}, ${i ? "highest" : "lowest"}`,
    onchange: () => onchange(boxes.map((box) => (box.value === "" ? null : Number(box.value)))) }));
  return el("div", { class: "range" }, el("span", {}, label), boxes[0], "to", boxes[1]);
}

function quoted(word) {
  if (/^[\w@%+=:,./\\-]+$/.test(word)) return word;
  return state.session.is_windows ? `"${word}"` : `'${word.replaceAll("'", `'"'"'`)}'`;
}

export function plotCommand(chart) {
  const words = ["trajtrainer", "plot", ...chart.frame.runs(), `--results-dir=${state.session.results}`,
    `--behavior=${chart.behavior}`, `--tag=${chart.tag}`, `--output=${fileName(chart.name)}.svg`];
  return words.map(quoted).join(" ");
}

async function saveNumbers(chart) {
  const lines = await chart.fetch(MOST_POINTS);
  const isHistogram = lines.some((line) => line.bands);
  const head = ["run", state.byTime ? "seconds" : "step", isHistogram ? "median" : "value", "low", "high",
    ...(isHistogram ? ["p5", "p25", "p75", "p95"] : [])];
  const rows = lines.flatMap((line) => {
    const [[p5, p95], [p25, p75]] = line.bands ?? [[], []];
    return line.mean.map((value, i) => [line.name, (state.byTime ? line.times : line.steps)[i], value, line.low?.[i] ?? value,
      line.high?.[i] ?? value, ...(isHistogram ? [p5?.[i], p25?.[i], p75?.[i], p95?.[i]] : [])]);
  });
  save(`${fileName(decoded(chart.behavior), chart.tag)}.csv`, csv([head, ...rows]), "text/csv");
}

// The plot, with a title above it and the names of its lines below.
async function savePicture(chart) {
  const { canvas, lines } = await chart.picture(WIDTH - 2 * EDGE, HEIGHT);
  const scale = canvas.width / (WIDTH - 2 * EDGE);
  const whole = el("canvas"), ink = whole.getContext("2d");
  const font = (size, weight) => `${weight} ${size}px system-ui, sans-serif`;
  ink.font = font(14, 400);
  const places = [];
  let x = EDGE, row = 0;
  for (const line of lines) {
    const width = ink.measureText(line.name).width + 40;
    if (x > EDGE && x + width > WIDTH - EDGE) { x = EDGE; row++; }
    places.push([x, row]);
    x += width;
  }
  const top = EDGE + 30, bottom = top + HEIGHT + 12;
  whole.width = WIDTH * scale;
  whole.height = (bottom + (row + 1) * LINE + EDGE / 2) * scale;
  ink.scale(scale, scale);
  ink.fillStyle = css("--card");
  ink.fillRect(0, 0, WIDTH, whole.height / scale);
  ink.fillStyle = css("--text");
  ink.font = font(18, 600);
  ink.fillText(chart.title, EDGE, EDGE + 12);
  const width = ink.measureText(chart.title).width;
  ink.fillStyle = css("--soft");
  ink.font = font(14, 400);
  ink.fillText([decoded(chart.behavior), chart.kind.textContent].filter(Boolean).join(", "), EDGE + width + 14, EDGE + 12);
  ink.drawImage(canvas, EDGE, top, WIDTH - 2 * EDGE, HEIGHT);
  lines.forEach((line, i) => {
    const [left, below] = [places[i][0], bottom + places[i][1] * LINE];
    ink.fillStyle = css(`--c${chart.frame.color(line.id)}`);
    ink.fillRect(left, below, 12, 12);
    ink.fillStyle = css("--text");
    ink.fillText(line.name, left + 20, below + 11);
  });
  const image = await new Promise((done) => whole.toBlob(done, "image/png"));
  save(`${fileName(decoded(chart.behavior), chart.tag)}.png`, image, "image/png");
}
