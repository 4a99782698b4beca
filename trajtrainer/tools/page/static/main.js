// The page: the list of runs, and next to it the curves of the selected runs, the details of one run, or a comparison of
// two. Alternatively, it shows a table of all runs.

import { Answer, get, Stream } from "./api.js";
import { staleCharts } from "./chart.js";
import { CompareView } from "./compare.js";
import { CurvesView, staleTags } from "./curves.js";
import { RunView, staleRun } from "./run.js";
import { RunsView } from "./runs.js";
import { bySearch, drawBy, read, refresh, state, update } from "./state.js";
import { staleTable, TableView } from "./table.js";
import { noteEnds, title, Title } from "./title.js";
import { Component, html, render, setClock } from "./util.js";

const FIRST_SHOWN = 4;
const VIEWS = [["runs", "Runs"], ["table", "Table"], ["curves", "Curves"], ["run", "Run"], ["compare", "Compare"]];
const MAIN = [["table", "Table of runs", TableView], ["curves", "Curves", CurvesView], ["run", "Run", RunView],
  ["compare", "Compare settings", CompareView]];
const narrow = matchMedia("(max-width: 820px)");
const groups = new Answer("groups", 1500);
let lastView = null;

// A part of the page that is not updated while it is hidden.
class Part extends Component {
  shouldComponentUpdate({ isSeen }) {
    return isSeen;
  }

  render({ isSeen, view: View }) {
    return isSeen && html`<${View} />`;
  }
}

function Page({ view, name }) {
  const { results, version } = state.session;
  return html`<header class="top">
      <h1><img src="icon.svg" alt="" width="22" height="22" />trajtrainer</h1>
      <span id="place" class="soft" title=${`${results}, trajtrainer ${version}`}>${name}</span>
      <nav id="views" aria-label="Views">${VIEWS.map(([key, label]) => html`<button type="button" data-view=${key}
        aria-current=${key === view ? "page" : "false"} onclick=${() => update({ view: key })}>${label}</button>`)}</nav>
      <span id="news" role="status"><${Title} /></span>
      <span id="live" class=${state.isLive ? "live on" : "live"} role="status">${{ true: "live", false: "disconnected" }[state.isLive]}</span>
    </header>
    <div class="layout">
      <div class="empty" hidden=${state.runs.length > 0}><h2>No runs yet</h2>
        <p>Waiting for the first run in <code>${results}</code>. It will appear here automatically. You can start one with:</p>
        <pre>trajtrainer learn builtin:ppo/3DBall --env=sim:3DBall --run-id=first</pre></div>
      <aside id="runs" aria-label="Runs"><${Part} isSeen=${narrow.matches ? view === "runs" : view !== "table"} view=${RunsView} /></aside>
      ${MAIN.map(([key, label, View]) => html`<main key=${key} id=${key} aria-label=${label}><${Part} isSeen=${key === view} view=${View} /></main>`)}
    </div>`;
}

function receiveRuns(runs) {
  const changes = { runs };
  const known = new Set(runs.map((run) => run.id));
  const newest = [...runs].sort((a, b) => b.updated - a.updated);
  if (!state.chosen) {
    const recent = bySearch(newest.filter((run) => !run.archived), (run) => run.search); // only one trial per search is shown
    if (!state.shown.length) changes.shown = recent.slice(0, FIRST_SHOWN).map(({ items }) => items[0].id).sort();
  } else changes.shown = state.shown.filter((id) => known.has(id));
  if (state.run === null && runs.length) changes.run = newest[0].id;
  noteEnds(runs);
  staleTable();
  update(changes);
}

async function start() {
  const place = document.getElementById("page");
  try {
    state.session = await get("session");
  } catch (error) {
    place.textContent = error.message;
    return;
  }
  setClock(state.session.now);
  read();
  const name = state.session.only ?? state.session.results.split(/[\\/]/).pop();
  const stream = new Stream({
    live: (isLive) => { state.isLive = isLive; refresh(); },
    runs: receiveRuns,
    changed: (ids) => {
      staleTags(ids);
      staleRun(ids);
      groups.stale();
      staleCharts(ids);
      refresh();
    },
  });

  function draw() {
    const view = !narrow.matches && state.view === "runs" ? "curves" : state.view; // on a wide screen the list is always visible
    state.groups = (state.seeds && state.shown.length && groups.latest({ run: state.shown })) || [];
    document.body.dataset.view = view;
    document.body.classList.toggle("nothing", state.runs.length === 0);
    document.title = title(name);
    render(html`<${Page} view=${view} name=${name} />`, place);
    if (lastView !== view) scrollTo(0, 0);
    lastView = view;
    stream.watch([...new Set([...(state.run === null ? [] : [state.run]), ...state.shown])]);
  }
  drawBy(draw);
  narrow.addEventListener("change", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  window.addEventListener("hashchange", () => { read(); update({}); });
  draw();
}

start();
