// The differences between two runs: their results and their settings.

import { Answer } from "./api.js";
import { chip } from "./runs.js";
import { listed, state, update } from "./state.js";
import { button, duration, html, matcher, rating, searchBox, whole } from "./util.js";
import { short } from "./uplot/plot.js";

const answers = [new Answer("run", 3000), new Answer("run", 3000)];
let search = "", listing = null;

// The two runs to compare: the user's choice, otherwise runs whose curves are shown, otherwise the newest ones.
function chosen() {
  const isKnown = (id) => state.runs.some((run) => run.id === id);
  const candidates = [...state.shown, ...listed().map((run) => run.id)].filter(isKnown);
  const [a, b] = state.compared.map((id) => (isKnown(id) ? id : null));
  const first = a ?? candidates.find((id) => id !== b) ?? null;
  return [first, b ?? candidates.find((id) => id !== first) ?? null];
}

// If each run has a single behavior and their names differ, they are compared as the same behavior.
function settingsOf(run, isRenamed) {
  const prefix = `behaviors.${run.behaviors[0]?.name}.`;
  return new Map(run.settings.map(([key, value]) => [isRenamed && key.startsWith(prefix) ? `behaviors.*.${key.slice(prefix.length)}` : key, value]));
}

function results(a, b) {
  const names = [...new Set([...a.behaviors, ...b.behaviors].map((each) => each.name))];
  const rows = names.flatMap((name) => {
    const [one, other] = [a, b].map((run) => run.behaviors.find((each) => each.name === name));
    const row = (title, value) => [names.length > 1 ? `${name}: ${title}` : title, value(one), value(other)];
    return [
      row("step", (each) => whole(each?.step)),
      row("mean reward", (each) => short(each?.reward)),
      row("ELO", (each) => rating(each?.elo)),
      row("evaluation", (each) => (each?.evaluation ? `${short(each.evaluation.mean)} ± ${short(each.evaluation.std)}` : "–")),
    ].filter(([, ...values]) => values.some((value) => value !== "–"));
  });
  const took = ({ took: seconds }) => (seconds ? duration(seconds) : "–");
  return table(["result", a.id, b.id], [["state", chip(a), chip(b)], ["took", took(a), took(b)], ...rows]);
}

function table(titles, rows) {
  return html`<div class="wide"><table class="compare"><thead><tr>${titles.map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
    <tbody>${rows.map(([title, ...values]) => html`<tr key=${title}><th scope="row"><code>${title}</code></th>
      ${values.map((value) => html`<td>${value}</td>`)}</tr>`)}</tbody></table></div>`;
}

function comparison(a, b) {
  const isRenamed = a.behaviors.length === 1 && b.behaviors.length === 1 && a.behaviors[0].name !== b.behaviors[0].name;
  const [left, right] = [settingsOf(a, isRenamed), settingsOf(b, isRenamed)], matches = matcher(search);
  const keys = [...new Set([...left.keys(), ...right.keys()])].filter((key) => key !== "checkpoint_settings.run_id" && matches(key));
  const differing = keys.filter((key) => left.get(key) !== right.get(key)), same = keys.filter((key) => left.get(key) === right.get(key));
  const number = differing.length, none = search.trim() ? "None of these differ" : "All settings are the same";
  return html`${results(a, b)}
    <h3>${number ? `${number} ${number === 1 ? "setting differs" : "settings differ"}` : none}</h3>
    ${number > 0 && table(["setting", a.id, b.id], differing.map((key) => [key, left.get(key) ?? "–", right.get(key) ?? "–"]))}
    ${same.length > 0 && html`<details class="part"><summary>The same in both <small>${same.length}</small></summary>
      ${table(["setting", "both"], same.map((key) => [key, left.get(key)]))}</details>`}`;
}

export function CompareView() {
  if (listing !== state.runs) answers.forEach((each) => each.stale());
  listing = state.runs;
  const ids = chosen();
  const [a, b] = ids.map((run, i) => run !== null && answers[i].of({ run }));
  const choice = (i) => html`<select aria-label=${i ? "Second run" : "First run"} value=${ids[i]}
    onchange=${({ currentTarget }) => update({ compared: state.compared.map((id, j) => (i === j ? currentTarget.value : id)) })}>
    ${state.runs.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}</select>`;
  const hint = answers.map((each) => each.problem).find(Boolean) ??
    (state.runs.length < 2 ? "Two runs are needed to compare their settings." : "Loading…");
  return html`<div class="tools">${choice(0)}and${choice(1)}${button("plain", "Swap", () => update({ compared: [...state.compared].reverse() }))}
      ${searchBox("Search settings", search, (text) => { search = text; update({}); })}</div>
    ${a && b ? comparison(a, b) : html`<p class="hint" role="status">${hint}</p>`}`;
}
