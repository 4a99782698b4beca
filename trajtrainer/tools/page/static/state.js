// What is shown: kept in the address, so that it can be shared and survives a reload.

const COLORS = 10;
export const AT_WORK = ["running", "stopping", "active"];
const VIEWS = ["runs", "table", "curves", "run", "compare"];

export const state = {
  view: "curves",
  run: null, // the one whose details are shown
  shown: [], // whose curves are shown, in the order of their colors
  chosen: false, // the user has chosen them
  smoothing: 0,
  byTime: false,
  logX: false,
  seeds: false, // one line for runs that differ only in their seed
  filter: "",
  span: null, // the part of the x axis that is zoomed to
  axes: {}, // tag -> {log, low, high} of its y axis
  where: "", // the filter of the table
  sort: "-updated", // key of a column; "-" for descending
  columns: null, // keys of the table's columns; null for a selection by what the runs have
  archived: false, // whether archived runs are shown
  unfolded: [], // searches whose trials are shown
  compared: [null, null],
  session: null, // what the server says about itself
  runs: [], // as the server lists them
  groups: [], // of the runs that are shown, those that differ only in their seed: {name, runs}
};

const listeners = new Set();
const colors = new Map(); // run id -> number of its color

export function onChange(listener) {
  listeners.add(listener);
}

export function update(changes) {
  Object.assign(state, changes);
  write();
  for (const listener of listeners) listener(changes);
}

// Runs at work, by name, and then the others, the newest first.
export function listed() {
  const moment = (run) => (AT_WORK.includes(run.state) ? Infinity : run.updated);
  return state.runs.filter((run) => state.archived || !run.archived)
    .sort((a, b) => moment(b) - moment(a) || a.id.localeCompare(b.id, undefined, { numeric: true }));
}

// The items in their order, as {search, items}: those of a search together, where the first of them is; any other alone.
export function bySearch(items, searchOf) {
  const found = new Map();
  for (const item of items) {
    const search = searchOf(item) ?? null, key = search ?? item;
    if (!found.has(key)) found.set(key, { search, items: [] });
    found.get(key).items.push(item);
  }
  return [...found.values()];
}

export function toggleSearch(search) {
  const isOpen = state.unfolded.includes(search);
  update({ unfolded: isOpen ? state.unfolded.filter((each) => each !== search) : [...state.unfolded, search] });
}

// A trial is shown under its search, whose name it need not repeat.
export function nameOf(run) {
  return run.search ? run.id.slice(run.search.length + 1) : run.id;
}

// With seeds together, all runs of a group have one color.
export function color(run) {
  const group = state.seeds ? state.groups.findIndex((each) => each.runs.includes(run)) : -1;
  if (group >= 0) return group % COLORS;
  if (!colors.has(run)) {
    const used = [...colors].filter(([id]) => state.shown.includes(id)).map(([, number]) => number);
    let number = 0;
    while (used.includes(number) && number < COLORS - 1) number++;
    colors.set(run, number);
  }
  return colors.get(run);
}

export function forgetColor(run) {
  colors.delete(run);
}

export function showCurves(run, isShown, most) {
  const others = state.shown.filter((id) => id !== run);
  if (!isShown) forgetColor(run);
  update({ shown: (isShown ? [...others, run] : others).slice(-most), chosen: true });
}

function number(text) {
  const found = text ? Number(text) : NaN;
  return Number.isFinite(found) ? found : null;
}

export function read() {
  const hash = new URLSearchParams(location.hash.slice(1));
  const smoothing = Number.parseFloat(hash.get("smoothing") ?? "0");
  const [from, to] = [number(hash.get("from")), number(hash.get("to"))];
  const axes = {};
  for (const text of hash.getAll("axis")) {
    const [tag, kind, low, high] = text.split("|");
    axes[tag] = { log: kind === "log", low: number(low), high: number(high) };
  }
  Object.assign(state, {
    view: VIEWS.includes(hash.get("view")) ? hash.get("view") : "curves",
    run: hash.get("run"),
    shown: hash.getAll("show"),
    chosen: hash.has("show"),
    smoothing: smoothing >= 0 && smoothing < 1 ? smoothing : 0,
    byTime: hash.get("x") === "time",
    logX: hash.has("logx"),
    seeds: hash.get("seeds") === "together",
    filter: hash.get("filter") ?? "",
    span: from !== null && to !== null && from < to ? [from, to] : null,
    axes,
    where: hash.get("where") ?? "",
    sort: hash.get("sort") ?? "-updated",
    columns: hash.has("columns") ? hash.get("columns").split(" ").filter(Boolean) : null,
    archived: hash.has("archived"),
    unfolded: hash.getAll("open"),
    compared: [hash.get("a"), hash.get("b")],
  });
}

function write() {
  const hash = new URLSearchParams();
  const set = (name, value, isSet) => { if (isSet) hash.set(name, value); };
  hash.set("view", state.view);
  set("run", state.run, state.run !== null);
  if (state.chosen) for (const run of state.shown) hash.append("show", run);
  set("smoothing", state.smoothing, state.smoothing !== 0);
  set("x", "time", state.byTime);
  set("logx", "1", state.logX);
  set("seeds", "together", state.seeds);
  set("filter", state.filter, state.filter);
  set("from", state.span?.[0], state.span);
  set("to", state.span?.[1], state.span);
  for (const [tag, { log, low, high }] of Object.entries(state.axes))
    if (log || low !== null || high !== null) hash.append("axis", [tag, log ? "log" : "", low ?? "", high ?? ""].join("|"));
  set("where", state.where, state.where);
  set("sort", state.sort, state.sort !== "-updated");
  set("columns", state.columns?.join(" "), state.columns);
  set("archived", "1", state.archived);
  for (const search of state.unfolded) hash.append("open", search);
  set("a", state.compared[0], state.compared[0] !== null);
  set("b", state.compared[1], state.compared[1] !== null);
  const text = `#${hash}`;
  if (text !== location.hash) history.replaceState(null, "", text);
}
