// Charts with uPlot, for the run page and for reports: lines with bands around them, and the values under the pointer.
//
// A line has `name`, `color` (the number of its color), `x` and `mean`. It may have `low` and `high`, `bands` (pairs of
// percentiles, the wider pair first), `seeds` (pairs of x and values, drawn as thin lines), and `smooth`, which is drawn in
// front of the mean. With `smooth`, `ends` can replace low and high.

const LINEAR = 1, LOG = 3, SYMMETRIC = 4; // uPlot's kinds of scales; the last one is linear around 0
export const KINDS = { [LOG]: "log", [SYMMETRIC]: "log, linear around 0" };

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function short(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const isExact = size >= 1e3 && size < 1e4 && size % 1e3 !== 0; // 1439, but 2k
  for (const [large, letter] of isExact ? [] : [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= large && size < 1e12) return trimmed(value / large, digits) + letter;
  return isExact ? trimmed(Math.round(value), 4) : trimmed(value, digits);
}

function trimmed(value, digits) {
  return String(+value.toPrecision(digits)).replace("-", "−");
}

function faded(hex, share) {
  return hex + Math.round(255 * share).toString(16).padStart(2, "0");
}

function nearest(sorted, wanted) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle; else high = middle;
  }
  return wanted - sorted[low] < sorted[high] - wanted ? low : high;
}

// Converts lines to uPlot's data and series: for each line, the bands, the individual seeds, and the line in front of them.
export function prepared(lines, { isLog = false, isLogX = false } = {}) {
  const tables = [], series = [{}], bands = [], none = { show: false };
  const banded = Math.sqrt(lines.filter((line) => line.low).length);
  for (const { color, x, mean, low, high, ends, smooth, bands: pairs, seeds = [] } of lines) {
    const stroke = css(`--c${color}`), thin = { stroke: faded(stroke, 0.28), width: 1, points: none };
    for (const [bottom, top] of [low && (ends ?? [low, high]), ...(pairs ?? [])].filter(Boolean)) {
      bands.push({ series: [series.length, series.length + 1], fill: faded(stroke, (pairs ? 0.16 : 0.22) / banded) });
      series.push({ points: none }, { points: none });
      tables.push([x, top, bottom]);
    }
    if (smooth) {
      series.push({ ...thin, stroke: faded(stroke, 0.45) });
      tables.push([x, mean]);
    }
    series.push(...seeds.map(() => thin));
    tables.push(...seeds);
    series.push({ stroke, width: smooth || seeds.length ? 2 : 1.6, points: { show: mean.length < 2, fill: stroke, size: 6 } });
    tables.push([x, smooth ?? mean]);
  }
  const values = lines.flatMap(({ mean, low, high, seeds = [] }) => [mean, low ?? [], high ?? [], ...seeds.map(([, each]) => each)].flat());
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const kind = !isLog ? LINEAR : values.every((value) => value > 0) ? LOG : SYMMETRIC;
  // With values at or below 0, the axis is linear around 0 and logarithmic for three powers of ten on each side.
  const threshold = kind === SYMMETRIC ? 10 ** (Math.ceil(Math.log10(largest || 1)) - 3) : 1;
  return { data: tables.length ? uPlot.join(isLogX ? tables.map(positive) : tables) : [[]], series, bands, kind, threshold };
}

// Removes points at or below 0, which a logarithmic x axis cannot show.
function positive([x, ...columns]) {
  const first = x.findIndex((value) => value > 0);
  return [x, ...columns].map((values) => (first < 0 ? [] : values.slice(first)));
}

// Returns uPlot's options for the result of `prepared`.
//
// `size`: width and height. `x` and `y`: titles of the axes. `format`: formats a number of the x axis. `span`: returns the
// part of the x axis to show, or null to show all of it. `limits`: limits of the y axis; null means to fit the values.
export function options({ series, bands, kind, threshold }, place) {
  const { size: [width, height], x, y, format = short, span = () => null, limits = [null, null], isLogX = false } = place;
  const font = "11px system-ui, sans-serif";
  const axis = { stroke: css("--soft"), font, ticks: { show: false }, grid: { stroke: css("--grid"), width: 1 },
    labelFont: `600 ${font}`, labelGap: 2, labelSize: 16 };
  const formatted = (each) => (_, values) => values.map((value) => (value === null ? "" : each(value)));
  const at = (splits) => ({ filter: (_, found) => found, splits: (_, number, low, high) => splits(low, high) });
  const onBothSides = (low, high) => {
    const [left, right] = [-low, high].map((end) => (end >= threshold ? powersOfTen(threshold, end) : []));
    return [...left.map((value) => -value).reverse(), 0, ...right];
  };
  const rangeY = (_, low, high) => {
    const [bottom, top] = limits;
    if (low === null || low === undefined) [low, high] = [1, 10];
    const around = kind === LOG ? padded(low, high) : uPlot.rangeNum(low, high, 0.1, true);
    const found = [kind === LOG && !(bottom > 0) ? around[0] : bottom ?? around[0], top ?? around[1]];
    return found[0] < found[1] ? found : around;
  };
  const rangeX = (_, low, high) => {
    if (low === null || low === undefined) [low, high] = [1, 10];
    const [from, to] = span() ?? [low, high];
    if (isLogX && to <= 0) return [low, high];
    if (from === to) return isLogX ? [from / 2, from * 2] : [from - 1, from + 1];
    return [isLogX && from <= 0 ? to / 1000 : from, to];
  };
  return {
    width, height, series, bands,
    legend: { show: false },
    padding: [8, 18, 0, 0],
    scales: { x: { time: false, range: rangeX, ...(isLogX ? { distr: LOG } : {}) }, y: { distr: kind, range: rangeY, asinh: threshold } },
    axes: [
      { ...axis, ...(isLogX ? at(powersOfTen) : {}), size: 22, labelGap: 0, labelSize: 14, space: 60, label: x, values: formatted(format) },
      { ...axis, ...{ [LOG]: at(powersOfTen), [SYMMETRIC]: at(onBothSides) }[kind], size: wide, space: 32, ...(y ? { label: y } : {}),
        values: formatted(short) },
    ],
  };
}

// Returns the width of an axis in pixels, which depends on its longest label.
function wide(_, values) {
  return Math.max(48, 14 + 6.5 * Math.max(0, ...(values ?? []).map((text) => text.length)));
}

function padded(low, high) {
  const factor = low === high ? 3 : Math.max(1.1, (high / low) ** 0.05);
  return [low / factor, high * factor];
}

// Returns at most about nine powers of ten. If the range is small, 2 and 5 times each power are added.
function powersOfTen(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const step = Math.ceil((last - first) / 8), factors = last - first <= 2 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = first; power <= last; power += step)
    for (const factor of factors) found.push(Number(`${factor}e${power}`));
  return found.filter((value) => value >= low && value <= high);
}

function element(name, content, className = "") {
  const found = Object.assign(document.createElement(name), { className });
  found.append(...[content].flat());
  return found;
}

// Returns the values of a line at one of its points, for the tooltip.
function told({ mean, low, high, bands, seeds, smooth }, at) {
  const between = (from, to) => `${short(from[at])} to ${short(to[at])}`;
  const range = low && low[at] !== high[at] ? between(low, high) : null, value = short(mean[at]);
  if (bands) return [`median ${value}`, `50%: ${between(...bands[1])}`, `90%: ${between(...bands[0])}`, `all: ${range ?? value}`];
  if (seeds?.length) return [value, range && `95%: ${range}`];
  return smooth ? [short(smooth[at]), range ?? value] : [range ?? value];
}

// Returns uPlot hooks that show the values of the lines at the pointer. `where` returns the title for a line and the index of
// one of its points.
export function pointer(tip, lines, where) {
  const show = (plot) => {
    const { left, top } = plot.cursor;
    if (!plot.over.matches(":hover")) return;
    const x = plot.posToVal(left, "x"), reach = (plot.scales.x.max - plot.scales.x.min) / 40;
    const near = left >= 0 ? lines().filter((line) => x >= line.x[0] - reach && x <= line.x.at(-1) + reach) : [];
    tip.hidden = near.length === 0;
    if (tip.hidden) return;
    tip.replaceChildren(element("small", where(near[0], nearest(near[0].x, x))), ...near.map((line) => {
      const [value, ...more] = told(line, nearest(line.x, x)).filter(Boolean);
      return element("div", [element("i", [], `key c${line.color}`), element("span", line.name), element("b", value),
        ...more.map((text) => element("small", text))], line.bands ? "spread" : "");
    }));
    const box = plot.over.getBoundingClientRect(), beyond = 14, wanted = box.left + left + beyond;
    const shownLeft = wanted + tip.offsetWidth > innerWidth - 4 ? box.left + left - tip.offsetWidth - beyond : wanted;
    tip.style.left = `${Math.max(4, shownLeft)}px`;
    tip.style.top = `${Math.max(4, Math.min(box.top + top + beyond, innerHeight - tip.offsetHeight - 4))}px`;
  };
  return { setCursor: [show], ready: [(plot) => plot.over.addEventListener("pointerleave", () => (tip.hidden = true))] };
}
