// The list of runs: their state and progress, and whose curves are shown.

import { bySearch, color, forgetColor, listed, nameOf, onChange, showCurves, state, toggleSearch, update } from "./state.js";
import { ago, arrange, counted, el, Kept, short } from "./util.js";

const NAMES = {
  running: "running", stopping: "stopping", active: "active", finished: "finished",
  stopped: "stopped", pruned: "pruned", failed: "failed", killed: "killed", ended: "ended",
  unreadable: "unreadable",
};

export function chip(run) {
  return el("span", { class: `chip ${run.state}`, title: run.message || null }, NAMES[run.state] ?? run.state);
}

export function labels(run) {
  return el("span", { class: "labels" }, ...run.labels.map((each) => el("span", { class: "label" }, each)));
}

export function progress(behavior) {
  const share = behavior.max_steps && behavior.step !== null ? Math.min(1, behavior.step / behavior.max_steps) : null;
  const bar = el("progress", { max: 1, value: share ?? 0, title: share === null ? null : `${Math.floor(100 * share)}%` });
  return share === null ? null : bar;
}

// "12 runs: 9 finished, 3 pruned"
export function ends(runs) {
  const states = runs.map((run) => NAMES[run.state] ?? run.state);
  const counts = [...new Set(states)].map((name) => `${states.filter((each) => each === name).length} ${name}`);
  return `${counted(runs.length, "run")}: ${counts.join(", ")}`;
}

// The button that shows or hides the trials of a search.
export function foldButton(search, isOpen) {
  return el("button", { type: "button", class: "name", "aria-expanded": String(isOpen), onclick: () => toggleSearch(search) },
    el("span", { class: "soft", "aria-hidden": "true" }, isOpen ? "▾ " : "▸ "), search);
}

class Row {
  constructor(run, most) {
    const id = run.id;
    this.id = id;
    this.check = el("input", { type: "checkbox", title: "Show curves", onchange: () => showCurves(id, this.check.checked, most) });
    this.key = el("i", { class: "key" });
    this.name = el("button", { type: "button", class: "name", title: id, onclick: () => update({ view: "run", run: id }) }, nameOf(run));
    this.state = el("span");
    this.kept = new Kept();
    this.more = el("div", { class: "more" });
    const box = el("label", { class: "box" }, this.check, this.key);
    this.element = el("li", { class: run.search ? "trial" : null }, box, this.name, this.state, this.more);
    this.check.setAttribute("aria-label", `Show curves of ${id}`);
  }

  update(run) {
    const isShown = state.shown.includes(run.id);
    this.check.checked = isShown;
    this.key.className = isShown ? `key c${color(run.id)}` : "key";
    this.element.classList.toggle("current", state.view === "run" && state.run === run.id);
    arrange(this.state, [this.kept.get("chip", [run.state, run.message], () => chip(run))]);
    arrange(this.more, [
      ...run.behaviors.slice(0, 3).map((behavior, i) => this.kept.get(`behavior ${i}`, behavior, () =>
        el("div", { class: "behavior" },
          el("span", { class: "soft clip", title: behavior.name }, behavior.name),
          progress(behavior),
          el("span", { class: "soft", title: "step" }, short(behavior.step)),
          el("b", { title: "mean reward" }, short(behavior.reward, 3)),
        ))),
      run.labels.length ? this.kept.get("labels", run.labels, () => labels(run)) : null,
      this.kept.get("updated", [run.behaviors.length, run.updated], () => el("div", { class: "soft small" },
        run.behaviors.length > 3 ? `and ${run.behaviors.length - 3} more, ` : "", "updated ", ago(run.updated))),
    ].filter(Boolean));
  }
}

export function runsView(place, session) {
  const rows = new Map();
  const search = el("input", { type: "search", placeholder: "Search runs", "aria-label": "Search runs", oninput: () => show() });
  const list = el("ul", { class: "runs" });
  const none = el("p", { class: "soft small" });
  const heads = new Kept();
  const all = el("button", { type: "button", class: "link", onclick: () => showAll(unfolded()) });
  place.append(el("div", { class: "find" }, search, all), list, none);

  function searchWords() {
    return search.value.toLowerCase().split(/\s+/).filter(Boolean);
  }

  function visible() {
    const words = searchWords();
    return listed().filter((run) => words.every((word) => [run.id, ...run.labels].some((text) => text.toLowerCase().includes(word))));
  }

  function isOpen(search) {
    return state.unfolded.includes(search) || searchWords().length > 0;
  }

  function unfolded() {
    return visible().filter((run) => !run.search || isOpen(run.search));
  }

  function showAll(runs) {
    const found = runs.map((run) => run.id);
    const isAll = found.length > 0 && found.every((id) => state.shown.includes(id));
    if (isAll) found.forEach(forgetColor);
    update({ shown: isAll ? state.shown.filter((id) => !found.includes(id)) :
      [...new Set([...state.shown, ...found])].slice(0, session.most_runs), chosen: true });
  }

  function head(search, runs) {
    const isAll = runs.every((run) => state.shown.includes(run.id)), text = ends(runs);
    return heads.get(search, [isOpen(search), isAll, text, runs.map((run) => run.id)], () => {
      const check = el("input", { type: "checkbox", checked: isAll, title: "Show curves of all", "aria-label": `Show curves of all trials of ${search}`,
        onchange: () => showAll(runs) });
      return el("li", {}, el("label", { class: "box" }, check, el("i", { class: "key" })), foldButton(search, isOpen(search)),
        el("span"), el("div", { class: "more soft small" }, text));
    });
  }

  function show() {
    const found = visible(), some = unfolded();
    for (const id of rows.keys()) if (!state.runs.some((run) => run.id === id)) rows.delete(id);
    for (const run of some) {
      if (!rows.has(run.id)) rows.set(run.id, new Row(run, session.most_runs));
      rows.get(run.id).update(run);
    }
    arrange(list, bySearch(found, (run) => run.search).flatMap(({ search, items }) => [
      ...(search === null ? [] : [head(search, items)]),
      ...(search === null || isOpen(search) ? items.map((run) => rows.get(run.id).element) : [])]));
    all.textContent = some.length && some.every((run) => state.shown.includes(run.id)) ? "Hide all" : "Show all";
    all.hidden = some.length === 0;
    none.textContent = state.runs.length && !found.length ? "No runs match." : "";
  }

  onChange(show);
  return { show };
}
