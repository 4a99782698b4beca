// The table of runs: a row for each behavior of each run, with its settings and measures as columns.

import { Answer } from "./api.js";
import { Columns, filterOf } from "./columns.js";
import { chip, ends, foldButton, labels, nameButton, showBox } from "./runs.js";
import { bySearch, listed, state, update } from "./state.js";
import { button, checkbox, counted, csv, html, isMissing, matcher, Menu, save, searchBox } from "./util.js";

const AT_FIRST = 200; // number of rows that are shown at first
const answer = new Answer("table", 5000);
const columns = new Columns();
let most = AT_FIRST, wanted = "", received = null;

export function staleTable() {
  answer.stale();
}

function chooser() {
  const matches = matcher(wanted), keys = columns.shown().map((column) => column.key);
  const choose = (key, isOn) => update({ columns: [...keys.filter((each) => each !== key), ...(isOn ? [key] : [])] });
  const choices = columns.groups().map(([title, some]) => [title, some.filter((column) => matches(column.title))]);
  return html`${searchBox("Search columns", wanted, (text) => { wanted = text; update({}); })}
    <div class="choices">${choices.map(([title, found]) => found.length > 0 && html`<h3>${title}</h3>
      ${found.map(({ key, title: name }) => checkbox(name, keys.includes(key), (isOn) => choose(key, isOn)))}`)}</div>
    ${button("link", "Reset columns", () => update({ columns: null }))}`;
}

function sorted() {
  const isDescending = state.sort.startsWith("-"), key = state.sort.replace(/^-/, "");
  const column = columns.find(key) ?? columns.find("updated");
  const { matches, unknown } = filterOf(state.where, columns);
  const order = (x, y) => {
    const difference = Number(x) - Number(y);
    return Number.isFinite(difference) ? difference : String(x).localeCompare(String(y), undefined, { numeric: true });
  };
  const rows = columns.rows(listed()).filter(matches).map((row) => [row, column.value(row)]).sort(([a, x], [b, y]) => {
    if (isMissing(x) || isMissing(y)) return isMissing(x) - isMissing(y); // missing values come last in either order
    return (isDescending ? order(y, x) : order(x, y)) || order(a.run.id, b.run.id);
  });
  return { rows: rows.map(([row]) => row), unknown };
}

function head({ key, title, short, hint, isNumber }) {
  const isSorted = state.sort.replace(/^-/, "") === key, isDescending = state.sort.startsWith("-");
  const sort = (isSorted ? !isDescending : isNumber) ? `-${key}` : key;
  return html`<th key=${key} scope="col" class=${isNumber ? "n" : null} aria-sort=${isSorted ? (isDescending ? "descending" : "ascending") : null}>
    <button type="button" title=${hint ?? title} onclick=${() => update({ sort })}>${short ?? title}<small class="arrow">${
      isSorted && (isDescending ? "▼" : "▲")}</small></button></th>`;
}

function row(each, shown) {
  const { run, key } = each, special = { state: chip, labels };
  return html`<tr key=${key} class=${[run.archived && "archived", run.search && "trial"].filter(Boolean).join(" ") || null}>
    <th scope="row"><span class="who">${showBox([run], `Show curves of ${run.id}`)}${nameButton(run)}</span></th>
    ${shown.map((column) => html`<td class=${column.isNumber ? "n" : null} title=${column.full?.(each)}>${
      special[column.key]?.(run) ?? column.text(each)}</td>`)}</tr>`;
}

// The rows of the table. Each search has a row above its trials, which are hidden until the search is opened or the table
// is filtered.
function folded(rows, shown) {
  return bySearch(rows, ({ run }) => run.search).flatMap(({ search, items }) => {
    const isOpen = search === null || state.unfolded.includes(search) || state.where.trim() !== "";
    const runs = [...new Set(items.map(({ run }) => run))];
    const head = () => html`<tr key=${`search ${search}`}><th scope="row"><span class="who">${foldButton(search, isOpen)}</span></th>
      <td class="soft" colspan=${shown.length}>${ends(runs)}</td></tr>`;
    return [...(search === null ? [] : [head]), ...(isOpen ? items.map((each) => () => row(each, shown)) : [])];
  });
}

function saveTable() {
  const shown = columns.shown();
  save("runs.csv", csv([["run", ...shown.map((column) => column.title)],
    ...sorted().rows.map((each) => [each.run.id, ...shown.map((column) => column.value(each) ?? "")])]), "text/csv");
}

export function TableView() {
  const found = answer.latest({});
  if (found !== received) columns.receive(received = found);
  const shown = columns.shown(), { rows, unknown } = sorted(), all = folded(rows, shown);
  const total = columns.rows(listed()).length, isMore = all.length > most;
  const count = (rows.length === total ? counted(total, "row") : `${rows.length} of ${total} rows`) + (isMore ? `, the first ${most} shown` : "");
  const compare = () => update({ compared: [state.shown[0] ?? null, state.shown[1] ?? null], view: "compare" });
  return html`<div class="tools">
      <input type="search" class="where" placeholder="Filter: words, reward>10, learning_rate=0.001" aria-label="Filter runs" value=${state.where}
        oninput=${(event) => { most = AT_FIRST; update({ where: event.currentTarget.value }); }} />
      <${Menu} label="Columns" name="Choose columns" make=${chooser} />
      <button type="button" class="plain" disabled=${state.runs.length < 2} onclick=${compare}>Compare settings</button>
      ${state.runs.some((run) => run.archived) && checkbox("Archived", state.archived, (isOn) => update({ archived: isOn }))}
      ${button("plain", "Save CSV", saveTable)}
      <span class="soft small" role="status">${unknown ? `There is no column ${unknown}.` : count}</span></div>
    <div class="wide table"><table><caption class="unseen">Runs</caption>
      <thead><tr>${[{ key: "id", title: "Run" }, ...shown].map(head)}</tr></thead>
      <tbody>${all.slice(0, most).map((make) => make())}</tbody></table></div>
    <button type="button" class="plain" hidden=${!isMore} onclick=${() => { most += AT_FIRST; update({}); }}>Show more rows</button>`;
}
