// The window's title: which runs ended since the page was last looked at.

import { AT_WORK, onChange, state, update } from "./state.js";
import { counted, el } from "./util.js";

export function titleOf(name) {
  const place = document.getElementById("news");
  const before = new Map(); // run id -> state
  let ended = []; // the newest first

  function show() {
    const failed = ended.filter((run) => ["failed", "killed"].includes(run.state));
    const one = failed[0] ?? ended[0];
    const more = ended.length > 1 ? ` and ${counted(ended.length - 1, "more run")}` : "";
    const text = one ? `${one.id} ${one.state === "ended" ? "has ended" : one.state === "killed" ? "was killed" : one.state}${more}` : "";
    const numRunning = state.runs.filter((run) => AT_WORK.includes(run.state)).length;
    document.title = text ? `${failed.length ? "✗" : "✓"} ${text} – trajtrainer` :
      `${numRunning ? `▶ ${numRunning} running – ` : ""}${name} – trajtrainer`;
    if (place.textContent === text) return;
    place.replaceChildren(...(one ? [el("button", { type: "button", class: `link ${one.state}`,
      onclick: () => { clear(); update({ view: "run", run: one.id }); } }, text)] : []));
  }

  function clear() {
    ended = [];
    show();
  }

  onChange((changes) => {
    if (!("runs" in changes)) return;
    for (const run of state.runs) {
      const was = before.get(run.id);
      before.set(run.id, run.state);
      if (AT_WORK.includes(run.state)) ended = ended.filter((each) => each.id !== run.id);
      else if (AT_WORK.includes(was)) ended = [run, ...ended.filter((each) => each.id !== run.id)];
    }
    show();
  });
  // The news was seen once the user comes back, or does something.
  for (const name of ["focus", "keydown"]) addEventListener(name, clear);
  addEventListener("pointerdown", (event) => { if (!place.contains(event.target)) clear(); });
  show();
}
