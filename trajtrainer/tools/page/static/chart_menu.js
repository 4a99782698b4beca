// The menu of a chart: options for its axes, and saving it to files.

import { get } from "./api.js";
import { spanOf, state, update } from "./state.js";
import { button, checkbox, Command, csv, decoded, fileName, html, Menu, save } from "./util.js";
import { css } from "./uplot/plot.js";

const MOST_POINTS = 4000; // maximum number of points per line in a saved file
const WIDTH = 1200, HEIGHT = 640, EDGE = 24, LINE = 24;

export function chartMenu(chart) {
  const { tag, frame } = chart.props, { log, low, high } = chart.axis;
  const set = (changes) => update({ axes: { ...state.axes, [tag]: { ...chart.axis, ...changes } } });
  return html`<${Menu} label="⋯" name=${`Axes and files: ${tag}`} make=${() => html`
    ${checkbox("Logarithmic values", log, (isOn) => set({ log: isOn }))}
    ${range("Values", [low, high], (ends) => set({ low: ends[0], high: ends[1] }))}
    ${range(state.byTime ? "Seconds" : "Steps", frame.span ?? [null, null], (ends) => frame.zoom(spanOf(...ends)))}
    <div class="row">${button("plain", "Save PNG", () => savePicture(chart))}${button("plain", "Save CSV", () => saveNumbers(chart))}</div>
    <p class="soft small">As SVG or PDF, for print:</p>
    <${Command} text=${plotCommand(chart)} />`} />`;
}

function range(label, ends, onchange) {
  const changed = (event) => {
    const boxes = [...event.currentTarget.closest(".range").querySelectorAll("input")];
    onchange(boxes.map((box) => (box.value === "" ? null : Number(box.value))));
  };
  const box = (end, value) => html`<input type="number" step="any" defaultValue=${value ?? ""} placeholder=${end}
    aria-label=${`${label}, ${end}`} onchange=${changed} />`;
  return html`<div class="range"><span>${label}</span>${box("lowest", ends[0])}to${box("highest", ends[1])}</div>`;
}

function quoted(word) {
  if (/^[\w@%+=:,./\\-]+$/.test(word)) return word;
  return state.session.is_windows ? `"${word}"` : `'${word.replaceAll("'", `'"'"'`)}'`;
}

function plotCommand({ name, props: { behavior, tag, frame } }) {
  const words = ["trajtrainer", "plot", ...frame.runs, `--results-dir=${state.session.results}`,
    `--behavior=${behavior}`, `--tag=${tag}`, `--output=${fileName(name)}.svg`];
  return words.map(quoted).join(" ");
}

async function saveNumbers(chart) {
  const lines = chart.linesOf(await get("series", chart.question(MOST_POINTS)));
  const isHistogram = lines.some((line) => line.bands);
  const head = ["run", state.byTime ? "seconds" : "step", isHistogram ? "median" : "value", "low", "high",
    ...(isHistogram ? ["p5", "p25", "p75", "p95"] : [])];
  const rows = lines.flatMap((line) => {
    const [[p5, p95], [p25, p75]] = line.bands ?? [[], []];
    return line.mean.map((value, i) => [line.name, line.x[i], value, line.low?.[i] ?? value,
      line.high?.[i] ?? value, ...(isHistogram ? [p5?.[i], p25?.[i], p75?.[i], p95?.[i]] : [])]);
  });
  save(`${fileName(decoded(chart.props.behavior), chart.props.tag)}.csv`, csv([head, ...rows]), "text/csv");
}

// Saves the plot with a title above it and the names of its lines below it.
async function savePicture(chart) {
  const canvas = await chart.picture(WIDTH - 2 * EDGE, HEIGHT);
  const scale = canvas.width / (WIDTH - 2 * EDGE);
  const picture = document.createElement("canvas"), ink = picture.getContext("2d");
  const write = (text, size, weight, color, x, y) => {
    ink.font = `${weight} ${size}px system-ui, sans-serif`;
    ink.fillStyle = css(color);
    ink.fillText(text, x, y);
    return x + ink.measureText(text).width;
  };
  ink.font = "400 14px system-ui, sans-serif";
  const places = [];
  let x = EDGE, row = 0;
  for (const line of chart.lines) {
    const width = ink.measureText(line.name).width + 40;
    if (x > EDGE && x + width > WIDTH - EDGE) { x = EDGE; row++; }
    places.push([x, row]);
    x += width;
  }
  const top = EDGE + 30, bottom = top + HEIGHT + 12;
  picture.width = WIDTH * scale;
  picture.height = (bottom + (row + 1) * LINE + EDGE / 2) * scale;
  ink.scale(scale, scale);
  ink.fillStyle = css("--card");
  ink.fillRect(0, 0, WIDTH, picture.height / scale);
  const end = write(chart.title, 18, 600, "--text", EDGE, EDGE + 12);
  write([decoded(chart.props.behavior), chart.notes].filter(Boolean).join(", "), 14, 400, "--soft", end + 14, EDGE + 12);
  ink.drawImage(canvas, EDGE, top, WIDTH - 2 * EDGE, HEIGHT);
  for (const [i, line] of chart.lines.entries()) {
    const [left, below] = [places[i][0], bottom + places[i][1] * LINE];
    ink.fillStyle = css(`--c${line.color}`);
    ink.fillRect(left, below, 12, 12);
    write(line.name, 14, 400, "--text", left + 20, below + 11);
  }
  const image = await new Promise((done) => picture.toBlob(done, "image/png"));
  save(`${fileName(decoded(chart.props.behavior), chart.props.tag)}.png`, image, "image/png");
}
