// The page: the list of runs, and next to it the curves of the selected ones, everything about one run, or the settings of
// two; or a table of all runs.

import { get, Stream } from "./api.js";
import { compareView } from "./compare.js";
import { curvesView } from "./curves.js";
import { runView } from "./run.js";
import { runsView } from "./runs.js";
import { bySearch, onChange, read, state, update } from "./state.js";
import { tableView } from "./table.js";
import { titleOf } from "./title.js";
import { el, setClock } from "./util.js";

const FIRST_SHOWN = 4;
const live = document.getElementById("live");
const tabs = [...document.querySelectorAll("#views button")];
const narrow = matchMedia("(max-width: 820px)");

function showView() {
  // On a wide screen the list is always visible.
  const view = !narrow.matches && state.view === "runs" ? "curves" : state.view;
  document.body.dataset.view = view;
  for (const tab of tabs) tab.setAttribute("aria-current", tab.dataset.view === view ? "page" : "false");
}

function showLive(isLive) {
  live.textContent = isLive ? "live" : "disconnected";
  live.classList.toggle("on", isLive);
}

function empty(session) {
  const place = el("div", { class: "empty", hidden: true },
    el("h2", {}, "No runs yet"),
    el("p", {}, "Waiting for the first run in ", el("code", {}, session.results), ". It will appear here on its own. You can start one with:"),
    el("pre", {}, "trajtrainer learn builtin:ppo/3DBall --env=sim:3DBall --run-id=first"));
  document.querySelector(".layout").prepend(place);
  return place;
}

async function start() {
  let session;
  try {
    session = await get("session");
  } catch (error) {
    live.textContent = error.message;
    return;
  }
  setClock(session.now);
  state.session = session;
  read();
  const name = session.only ?? session.results.split(/[\\/]/).pop();
  const place = document.getElementById("place");
  place.textContent = name;
  place.title = `${session.results}, trajtrainer ${session.version}`;

  const nothing = empty(session);
  const runs = runsView(document.getElementById("runs"), session);
  const curves = curvesView(document.getElementById("curves"));
  const run = runView(document.getElementById("run"));
  const table = tableView(document.getElementById("table"), session);
  const compare = compareView(document.getElementById("compare"));
  titleOf(name);

  const stream = new Stream({
    live: showLive,
    runs: (found) => {
      const changes = { runs: found };
      const known = new Set(found.map((each) => each.id));
      if (!state.chosen) {
        const recent = found.filter((each) => !each.archived).sort((a, b) => b.updated - a.updated);
        const newest = bySearch(recent, (each) => each.search).slice(0, FIRST_SHOWN).map(({ items }) => items[0].id); // one trial of a search
        const shown = state.shown.length ? state.shown : newest.sort();
        if (shown.join() !== state.shown.join()) changes.shown = shown;
      } else if (state.shown.some((id) => !known.has(id))) {
        changes.shown = state.shown.filter((id) => known.has(id));
      }
      if (state.run === null && found.length) changes.run = [...found].sort((a, b) => b.updated - a.updated)[0].id;
      update(changes);
    },
    changed: (ids) => { curves.changed(ids); run.changed(ids); },
  });

  onChange((changes) => {
    if ("view" in changes) { showView(); scrollTo(0, 0); }
    if ("shown" in changes || "run" in changes) watch();
    if ("runs" in changes) {
      nothing.hidden = state.runs.length > 0;
      document.body.classList.toggle("nothing", state.runs.length === 0);
    }
  });
  function watch() {
    stream.watch([...new Set([...(state.run === null ? [] : [state.run]), ...state.shown])]);
  }
  for (const tab of tabs) tab.addEventListener("click", () => update({ view: tab.dataset.view }));
  narrow.addEventListener("change", showView);
  window.addEventListener("hashchange", () => { read(); update({ ...state }); });

  showView();
  runs.show();
  curves.show();
  run.show();
  table.show();
  compare.show();
  watch();
}

start();
