// The window's title, which shows the runs that have ended since the user last looked at the page.

import { AT_WORK, refresh, state, update } from "./state.js";
import { button, counted } from "./util.js";

const FAILED = ["failed", "killed"];
const before = new Map(); // run id -> state
let ended = []; // newest first

export function noteEnds(runs) {
  for (const run of runs) {
    const was = before.get(run.id), isAtWork = AT_WORK.includes(run.state);
    before.set(run.id, run.state);
    if (isAtWork || AT_WORK.includes(was)) ended = [...(isAtWork ? [] : [run]), ...ended.filter((each) => each.id !== run.id)];
  }
}

function worst() {
  return ended.find((run) => FAILED.includes(run.state)) ?? ended[0];
}

function text() {
  const run = worst(), verb = { ended: "has ended", killed: "was killed" }[run.state] ?? run.state;
  return `${run.id} ${verb}${ended.length > 1 ? ` and ${counted(ended.length - 1, "more run")}` : ""}`;
}

export function title(name) {
  if (ended.length) return `${FAILED.includes(worst().state) ? "✗" : "✓"} ${text()} – trajtrainer`;
  const numRunning = state.runs.filter((run) => AT_WORK.includes(run.state)).length;
  return `${numRunning ? `▶ ${numRunning} running – ` : ""}${name} – trajtrainer`;
}

export function Title() {
  const run = worst();
  return run && button(`link ${run.state}`, text(), () => { ended = []; update({ view: "run", run: run.id }); });
}

// Clears the news when the user returns to the page or does something on it.
function clear(event) {
  if (!ended.length || event.target.closest?.("#news")) return;
  ended = [];
  refresh();
}
for (const kind of ["focus", "keydown", "pointerdown"]) addEventListener(kind, clear);
