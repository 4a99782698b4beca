// What is shown: kept in the address, so that it can be shared and survives a reload.

const COLORS = 10;

export const state = {
  view: "curves",
  run: null, // the one whose details are shown
  shown: [], // whose curves are shown, in the order of their colors
  chosen: false, // the user has chosen them
  smoothing: 0.6,
  byTime: false,
  filter: "",
  span: null, // the part of the x axis that is zoomed to
  runs: [], // as the server lists them
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

export function color(run) {
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

export function read() {
  const hash = new URLSearchParams(location.hash.slice(1));
  const smoothing = Number.parseFloat(hash.get("smoothing") ?? "0.6");
  Object.assign(state, {
    view: ["runs", "curves", "run"].includes(hash.get("view")) ? hash.get("view") : "curves",
    run: hash.get("run"),
    shown: hash.getAll("show"),
    chosen: hash.has("show"),
    smoothing: smoothing >= 0 && smoothing < 1 ? smoothing : 0.6,
    byTime: hash.get("x") === "time",
    filter: hash.get("filter") ?? "",
  });
}

function write() {
  const hash = new URLSearchParams();
  hash.set("view", state.view);
  if (state.run !== null) hash.set("run", state.run);
  if (state.chosen) for (const run of state.shown) hash.append("show", run);
  if (state.smoothing !== 0.6) hash.set("smoothing", state.smoothing);
  if (state.byTime) hash.set("x", "time");
  if (state.filter) hash.set("filter", state.filter);
  const text = `#${hash}`;
  if (text !== location.hash) history.replaceState(null, "", text);
}
