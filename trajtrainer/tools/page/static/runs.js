// The list of runs, with their state and progress and a box that shows or hides their curves.

import { bySearch, color, listed, showCurves, state, toggleSearch, update } from "./state.js";
import { ago, button, counted, html, matcher, searchBox } from "./util.js";
import { short } from "./uplot/plot.js";

let search = "";

export function chip(run) {
  return html`<span class=${`chip ${run.state}`} title=${run.message || null}>${run.state}</span>`;
}

export function labels(run) {
  return html`<span class="labels">${run.labels.map((each) => html`<span class="label">${each}</span>`)}</span>`;
}

export function progress({ step, max_steps: most }) {
  const share = most && step !== null ? Math.min(1, step / most) : null;
  return share !== null && html`<progress max="1" value=${share} title=${`${Math.floor(100 * share)}%`} />`;
}

// A trial is listed under its search, so it does not repeat the search's name.
export function nameButton(run) {
  return html`<button type="button" class="name" title=${run.id} onclick=${() => update({ view: "run", run: run.id })}>${
    run.search ? run.id.slice(run.search.length + 1) : run.id}</button>`;
}

// The box that shows or hides the curves of runs, and the run's color if there is only one.
export function showBox(runs, label) {
  const ids = runs.map((run) => run.id), isShown = ids.every((id) => state.shown.includes(id));
  return html`<input type="checkbox" checked=${isShown} title=${`Show curves${ids.length > 1 ? " of all" : ""}`} aria-label=${label}
      onchange=${(event) => showCurves(ids, event.currentTarget.checked)} />
    <i class=${ids.length === 1 && isShown ? `key c${color(ids[0])}` : "key"} />`;
}

// Returns a text like "12 runs: 9 finished, 3 pruned".
export function ends(runs) {
  const counts = [...Map.groupBy(runs, (run) => run.state)].map(([name, some]) => `${some.length} ${name}`);
  return `${counted(runs.length, "run")}: ${counts.join(", ")}`;
}

// The button that shows or hides the trials of a search.
export function foldButton(folder, isOpen) {
  return html`<button type="button" class="name" aria-expanded=${isOpen} onclick=${() => toggleSearch(folder)}>
    <span class="soft" aria-hidden="true">${isOpen ? "▾ " : "▸ "}</span>${folder}</button>`;
}

function row(run) {
  const isCurrent = state.view === "run" && state.run === run.id, { behaviors } = run;
  return html`<li key=${run.id} class=${[run.search && "trial", isCurrent && "current"].filter(Boolean).join(" ") || null}>
    <label class="box">${showBox([run], `Show curves of ${run.id}`)}</label>${nameButton(run)}<span>${chip(run)}</span>
    <div class="more">${behaviors.slice(0, 3).map((behavior) => html`<div class="behavior">
        <span class="soft clip" title=${behavior.name}>${behavior.name}</span>${progress(behavior)}
        <span class="soft" title="step">${short(behavior.step)}</span><b title="mean reward">${short(behavior.reward, 3)}</b></div>`)}
      ${run.labels.length > 0 && labels(run)}
      <div class="soft small">${behaviors.length > 3 && `and ${behaviors.length - 3} more, `}updated ${ago(run.updated)}</div></div></li>`;
}

export function RunsView() {
  const matches = matcher(search);
  const found = listed().filter((run) => matches(run.id, ...run.labels));
  const isOpen = (folder) => state.unfolded.includes(folder) || search.trim() !== "";
  const open = found.filter((run) => !run.search || isOpen(run.search)).map((run) => run.id);
  const isAll = open.every((id) => state.shown.includes(id));
  return html`<div class="find">${searchBox("Search runs", search, (text) => { search = text; update({}); })}
      ${open.length > 0 && button("link", isAll ? "Hide all" : "Show all", () => showCurves(open, !isAll))}</div>
    <ul class="runs">${bySearch(found, (run) => run.search).flatMap(({ search: folder, items }) => [
      folder !== null && html`<li key=${`search ${folder}`}><label class="box">${showBox(items, `Show curves of all trials of ${folder}`)}</label>
        ${foldButton(folder, isOpen(folder))}<span /><div class="more soft small">${ends(items)}</div></li>`,
      ...(folder === null || isOpen(folder) ? items.map(row) : [])])}</ul>
    <p class="soft small">${state.runs.length > 0 && !found.length && "No runs match."}</p>`;
}
