// The state of the page. It is stored in the URL, so that it can be shared and survives a reload.

const NUM_COLORS = 10;
export const AT_WORK = ["running", "stopping", "active"];
const VIEWS = ["runs", "table", "curves", "run", "compare"];

// For each part of the state: a function that reads it from the URL, and a function that returns its URL parameters, or
// nothing if it has its default value.
const ADDRESS = {
  view: [(hash) => (VIEWS.includes(hash.get("view")) ? hash.get("view") : "curves"), (view) => ({ view })],
  run: [(hash) => hash.get("run"), (run) => ({ run })], // the run whose details are shown
  // the runs whose curves are shown, in the order of their colors
  shown: [(hash) => hash.getAll("show"), (show) => state.chosen && { show }],
  smoothing: [(hash) => within(Number(hash.get("smoothing")), 0, 0.999), (smoothing) => smoothing && { smoothing }],
  byTime: [(hash) => hash.get("x") === "time", (isOn) => isOn && { x: "time" }],
  logX: [(hash) => hash.has("logx"), (isOn) => isOn && { logx: 1 }],
  // one line for runs that differ only in their seed
  seeds: [(hash) => hash.get("seeds") === "together", (isOn) => isOn && { seeds: "together" }],
  filter: [(hash) => hash.get("filter") ?? "", (filter) => filter && { filter }], // the filter of the charts
  // the part of the x axis that the charts are zoomed to
  span: [(hash) => spanOf(number(hash.get("from")), number(hash.get("to"))), (span) => span && { from: span[0], to: span[1] }],
  // tag -> {log, low, high} of the chart's y axis
  axes: [(hash) => Object.fromEntries(hash.getAll("axis").map(axisOf)), (axes) => ({ axis: Object.entries(axes).flatMap(axisText) })],
  where: [(hash) => hash.get("where") ?? "", (where) => where && { where }], // the filter of the table
  sort: [(hash) => hash.get("sort") ?? "-updated", (sort) => sort !== "-updated" && { sort }], // key of a column, with "-" for descending
  // the columns of the table; null for the default ones
  columns: [(hash) => hash.get("columns")?.split(" ").filter(Boolean) ?? null, (keys) => keys && { columns: keys.join(" ") }],
  archived: [(hash) => hash.has("archived"), (isOn) => isOn && { archived: 1 }], // whether archived runs are shown
  unfolded: [(hash) => hash.getAll("open"), (open) => ({ open })], // searches whose trials are shown
  compared: [(hash) => [hash.get("a"), hash.get("b")], ([a, b]) => ({ a, b })],
};

export const state = {
  chosen: false, // whether the user has chosen which runs are shown
  session: null, // the server's information about itself
  isLive: null, // whether the stream of changes is connected; null until this is known
  runs: [], // the server's list of runs
  groups: [], // groups {name, runs} of the shown runs that differ only in their seed
};

const colors = new Map(); // run id -> number of its color
let draw = () => {};
let isDue = false;

export function drawBy(action) {
  draw = action;
}

export function update(changes) {
  Object.assign(state, changes);
  const parts = Object.entries(ADDRESS).map(([key, [, write]]) => write(state[key]) || {});
  const text = `#${query(Object.assign({}, ...parts))}`;
  if (text !== location.hash) history.replaceState(null, "", text);
  draw();
}

// Draws in the browser's next frame, so that answers that arrive together are drawn together.
export function refresh() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; draw(); });
}

export function read() {
  const hash = new URLSearchParams(location.hash.slice(1));
  for (const [key, [readPart]] of Object.entries(ADDRESS)) state[key] = readPart(hash);
  state.chosen = state.shown.length > 0;
}

export function query(parameters) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== null && each !== undefined) search.append(key, each);
  return search.toString();
}

function within(value, low, high) {
  return value >= low && value <= high ? value : low;
}

function number(text) {
  const found = text ? Number(text) : NaN;
  return Number.isFinite(found) ? found : null;
}

export function spanOf(from, to) {
  return from !== null && to !== null && from < to ? [from, to] : null;
}

function axisOf(text) {
  const [tag, kind, low, high] = text.split("|");
  return [tag, { log: kind === "log", low: number(low), high: number(high) }];
}

function axisText([tag, { log, low, high }]) {
  return log || low !== null || high !== null ? [[tag, log ? "log" : "", low ?? "", high ?? ""].join("|")] : [];
}

// Active runs sorted by name, followed by the other runs, newest first.
export function listed() {
  const moment = (run) => (AT_WORK.includes(run.state) ? Infinity : run.updated);
  return state.runs.filter((run) => state.archived || !run.archived)
    .sort((a, b) => moment(b) - moment(a) || a.id.localeCompare(b.id, undefined, { numeric: true }));
}

// Groups items as {search, items}. The items of a search form one group, at the position of the first one. Every other item
// is a group of its own.
export function bySearch(items, searchOf) {
  const found = Map.groupBy(items, (item) => searchOf(item) ?? item);
  return [...found].map(([key, some]) => ({ search: typeof key === "string" ? key : null, items: some }));
}

export function toggleSearch(search) {
  const isOpen = state.unfolded.includes(search);
  update({ unfolded: isOpen ? state.unfolded.filter((each) => each !== search) : [...state.unfolded, search] });
}

// The number of a run's color. If seeds are shown together, all runs of a group have the same color.
export function color(run) {
  const group = state.groups.findIndex((each) => each.runs.includes(run));
  if (group >= 0) return group % NUM_COLORS;
  if (!colors.has(run)) {
    const used = [...colors].filter(([id]) => state.shown.includes(id)).map(([, found]) => found);
    let free = 0;
    while (used.includes(free) && free < NUM_COLORS - 1) free++;
    colors.set(run, free);
  }
  return colors.get(run);
}

// Shows or hides the curves of runs. If there are too many, a single new run replaces the run that was shown first.
export function showCurves(runs, isShown) {
  const shown = isShown ? [...new Set([...state.shown, ...runs])] : state.shown.filter((id) => !runs.includes(id));
  if (!isShown) runs.forEach((run) => colors.delete(run));
  update({ shown: shown.slice(runs.length === 1 ? -state.session.most_runs : 0).slice(0, state.session.most_runs), chosen: true });
}
