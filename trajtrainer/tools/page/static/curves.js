// The charts of all runs that are shown, grouped by behavior and by the first part of the tag.

import { Answer } from "./api.js";
import { Chart } from "./chart.js";
import { bySearch, color, state, update } from "./state.js";
import { checkbox, counted, decoded, html, matcher, searchBox } from "./util.js";

const FIRST = ["Environment", "Evaluation", "Self-play"];
const OPEN = [...FIRST, "Losses", "Policy"];
const REWARD = "Environment/Cumulative Reward";
const SEEDS = "One line for runs that differ only in their seed: the interquartile mean (with fewer than four seeds, the mean) " +
  "with its 95% bootstrap interval. Thin lines are single seeds.";
const answer = new Answer("tags", 1500);
const folds = new Map(); // behavior and category -> whether the section is open

export function staleTags(runs) {
  if (runs.some((id) => state.shown.includes(id))) answer.stale();
}

function category(tag) {
  return tag.includes("/") ? tag.slice(0, tag.indexOf("/")) : "Other";
}

function place(name) {
  return OPEN.includes(name) ? Math.min(OPEN.indexOf(name), FIRST.length) : OPEN.length;
}

function group(behavior, name, tags, frame, isFound) {
  const key = `${behavior}\n${name}`;
  if (isFound) folds.set(key, true);
  return html`<details key=${key} class="group" open=${folds.get(key) ?? OPEN.includes(name)}
    ontoggle=${(event) => folds.set(key, event.currentTarget.open)}>
    <summary>${name} <small>${tags.length}</small></summary>
    <div class="grid">${tags.map((tag) => html`<${Chart} key=${tag} behavior=${behavior} tag=${tag} frame=${frame} />`)}</div></details>`;
}

function section(behavior, names, frame, hasTitle) {
  const matches = matcher(state.filter);
  const tags = names.filter((tag) => matches(tag)).sort((a, b) => (b === REWARD) - (a === REWARD) || a.localeCompare(b));
  const groups = [...Map.groupBy(tags, category)].sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b));
  return html`<section key=${behavior} hidden=${!tags.length}><h2 hidden=${!hasTitle}>${decoded(behavior)}</h2>
    ${groups.map(([name, some]) => group(behavior, name, some, frame, state.filter.trim() !== ""))}</section>`;
}

function line({ name, runs }) {
  return html`<li key=${name} title=${runs.length > 1 ? runs.join("\n") : null}><i class=${`key c${color(runs[0])}`} />${name}${
    runs.length > 1 && html`<small> ${counted(runs.length, "seed")}</small>`}</li>`;
}

function legend() {
  const lines = state.groups.length ? state.groups : state.shown.map((id) => ({ name: id, runs: [id] }));
  const searches = new Map(state.runs.map((run) => [run.id, run.search]));
  const fold = (search, items) => html`<li key=${`search ${search}`}><details>
    <summary>${search}, ${counted(items.length, "line")}</summary><ul class="legend">${items.map(line)}</ul></details></li>`;
  return html`<ul class="legend">${bySearch(lines, ({ runs }) => searches.get(runs[0])).map(({ search, items }) =>
    (items.length === 1 ? line(items[0]) : fold(search, items)))}</ul>`;
}

export function CurvesView() {
  const tags = (state.shown.length && answer.latest({ run: state.shown })) || {};
  const found = new Map(); // behavior's folder -> tags
  for (const run of state.shown)
    for (const [behavior, names] of Object.entries(tags[run]?.tags ?? {}))
      found.set(behavior, new Set([...found.get(behavior) ?? [], ...names]));
  const frame = { key: "curves", runs: state.shown, color, span: state.span, zoom: (span) => update({ span }), seeds: state.seeds };
  const parts = state.shown.filter((id) => tags[id]?.read < 0.999);
  const note = !state.runs.length ? "" : !state.shown.length ? "Select runs from the list to see their curves." :
    !found.size && !parts.length ? "No curves yet. The first point appears with the first summary (summary_freq)." : "";
  return html`<div class="tools">${searchBox("Search charts", state.filter, (filter) => update({ filter }))}
      <label class="slider">Smoothing<input type="range" min="0" max="0.99" step="0.01" value=${state.smoothing} aria-label="Smoothing"
        oninput=${(event) => update({ smoothing: Number(event.currentTarget.value) })} /><output>${state.smoothing.toFixed(2)}</output></label>
      <div class="switch" role="group" aria-label="Axis">${["Steps", "Time"].map((name, i) => html`<button type="button"
        aria-pressed=${state.byTime === (i === 1)} onclick=${() => update({ byTime: i === 1, span: null })}>${name}</button>`)}</div>
      ${checkbox("Log axis", state.logX, (logX) => update({ logX }))}
      ${checkbox("Seeds together", state.seeds, (seeds) => update({ seeds }), SEEDS)}
      <button type="button" class="plain" hidden=${!state.span} onclick=${() => update({ span: null })}>Reset zoom</button></div>
    ${legend()}
    <div class="reading" role="status" hidden=${!parts.length}>Loading ${parts.map((id) => `${id} (${Math.floor(100 * tags[id].read)}%)`).join(", ")}</div>
    <p class="hint">${note}</p>
    <div>${[...found.keys()].sort().map((behavior) => section(behavior, [...found.get(behavior)], frame, found.size > 1))}</div>`;
}
