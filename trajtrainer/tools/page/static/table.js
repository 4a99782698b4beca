// The table of runs: a row for each behavior of each run, its settings and measures as columns.

import { get } from "./api.js";
import { Columns, filterOf } from "./columns.js";
import { chip, ends, foldButton, labels } from "./runs.js";
import { bySearch, color, listed, nameOf, onChange, showCurves, state, update } from "./state.js";
import { arrange, checkbox, counted, csv, el, Kept, menu, save, throttled } from "./util.js";

const AT_FIRST = 200; // rows

// Elements that are made again keep the focus, which would otherwise go to the top of the page.
function keepingFocus(place, action) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const key = focused?.closest("[data-key]").dataset.key;
  action();
  if (focused && !focused.isConnected)
    [...place.children].find((child) => child.dataset.key === key)?.querySelector(focused.tagName)?.focus();
}

export function tableView(main, session) {
  const columns = new Columns();
  const kept = new Kept(), heads = new Kept();
  let most = AT_FIRST;

  const where = el("input", { type: "search", class: "where", placeholder: "Filter: words, reward>10, learning_rate=0.001",
    "aria-label": "Filter runs", oninput: () => { most = AT_FIRST; update({ where: where.value }); } });
  const archived = checkbox("Archived", false, (isOn) => update({ archived: isOn }));
  const compare = el("button", { type: "button", class: "plain", onclick: () =>
    update({ compared: [state.shown[0] ?? null, state.shown[1] ?? null], view: "compare" }) }, "Compare settings");
  const count = el("span", { class: "soft small", role: "status" });
  const body = el("tbody"), head = el("tr");
  const more = el("button", { type: "button", class: "plain", onclick: () => { most += AT_FIRST; show(); } }, "Show more rows");
  main.append(
    el("div", { class: "tools" }, where, menu("Columns", "Choose columns", chooser), compare, archived,
      el("button", { type: "button", class: "plain", onclick: saveTable }, "Save CSV"), count),
    el("div", { class: "wide table" }, el("table", {}, el("caption", { class: "unseen" }, "Runs"), el("thead", {}, head), body)), more);

  function chooser() {
    const search = el("input", { type: "search", placeholder: "Search columns", "aria-label": "Search columns", oninput: () => list() });
    const place = el("div", { class: "choices" });
    function list() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const shown = new Set(columns.shown().map((column) => column.key));
      place.replaceChildren(...columns.groups().flatMap(([title, some]) => {
        const found = some.filter((column) => words.every((word) => column.title.toLowerCase().includes(word)));
        return found.length ? [el("h3", {}, title), ...found.map((column) => checkbox(column.title, shown.has(column.key), (isOn) => {
          const keys = columns.shown().map((each) => each.key).filter((key) => key !== column.key);
          update({ columns: isOn ? [...keys, column.key] : keys });
        }))] : [];
      }));
    }
    list();
    return [search, place, el("button", { type: "button", class: "link", onclick: () => { update({ columns: null }); list(); } }, "Reset columns")];
  }

  function sorted() {
    const isDescending = state.sort.startsWith("-"), key = state.sort.replace(/^-/, "");
    const column = columns.find(key) ?? columns.find("updated");
    const { matches, unknown } = filterOf(state.where, columns);
    const values = new Map();
    const rows = columns.rows(listed()).filter(matches);
    for (const row of rows) values.set(row, column.value(row));
    const isEmpty = (value) => value === null || value === undefined || value === "";
    rows.sort((a, b) => {
      const [x, y] = [values.get(a), values.get(b)];
      if (isEmpty(x) || isEmpty(y)) return isEmpty(x) - isEmpty(y); // missing ones are last, in either order
      const [p, q] = [Number(x), Number(y)];
      const order = Number.isFinite(p) && Number.isFinite(q) ? p - q : String(x).localeCompare(String(y), undefined, { numeric: true });
      return (isDescending ? -order : order) || a.run.id.localeCompare(b.run.id, undefined, { numeric: true });
    });
    return { rows, unknown };
  }

  function header(column) {
    const isSorted = state.sort.replace(/^-/, "") === column.key, isDescending = state.sort.startsWith("-");
    const arrow = isSorted ? (isDescending ? "▼" : "▲") : "";
    return heads.get(column.key, [column.title, arrow], () => el("th", { scope: "col", "data-key": column.key, class: column.isNumber ? "n" : null,
      "aria-sort": isSorted ? (isDescending ? "descending" : "ascending") : null },
    el("button", { type: "button", title: column.hint ?? column.title, onclick: () => update({ sort:
        state.sort === column.key ? `-${column.key}` : state.sort === `-${column.key}` ? column.key :
          column.isNumber ? `-${column.key}` : column.key }) }, column.short ?? column.title, el("small", { class: "arrow" }, arrow))));
  }

  function element(row, shown) {
    const { run, behavior } = row, isShown = state.shown.includes(run.id);
    const texts = shown.map((column) => column.text(row));
    return kept.get(row.key, [texts, run.state, run.labels, isShown, isShown ? color(run.id) : null, shown.map((column) => column.key)], () => {
      const box = el("input", { type: "checkbox", checked: isShown, "aria-label": `Show curves of ${run.id}`,
        onchange: () => showCurves(run.id, box.checked, session.most_runs) });
      const name = el("button", { type: "button", class: "name", title: run.id, onclick: () => update({ view: "run", run: run.id }) }, nameOf(run));
      const classes = [run.archived && "archived", run.search && "trial"].filter(Boolean).join(" ");
      return el("tr", { "data-key": row.key, class: classes || null },
        el("th", { scope: "row" }, el("span", { class: "who" }, box, el("i", { class: isShown ? `key c${color(run.id)}` : "key" }), name)),
        ...shown.map((column, i) => el("td", { class: column.isNumber ? "n" : null, title: column.full?.(row) ?? null },
          column.key === "state" ? chip(run) : column.key === "labels" ? labels(run) :
            column.key === "updated" ? column.element(row) : texts[i])));
    });
  }

  // The rows, and above the trials of a search its own; they are hidden until it is opened, or something is looked for.
  function folded(rows, shown) {
    return bySearch(rows, ({ run }) => run.search).flatMap(({ search, items }) => {
      if (search === null) return items.map((row) => () => element(row, shown));
      const isOpen = state.unfolded.includes(search) || state.where.trim() !== "";
      const text = ends([...new Set(items.map(({ run }) => run))]);
      const head = () => kept.get(`search ${search}`, [text, isOpen, shown.length], () =>
        el("tr", { "data-key": `search ${search}` }, el("th", { scope: "row" }, el("span", { class: "who" }, foldButton(search, isOpen))),
          el("td", { class: "soft", colspan: shown.length }, text)));
      return [head, ...(isOpen ? items.map((row) => () => element(row, shown)) : [])];
    });
  }

  function show() {
    if (state.view !== "table") return;
    const shown = columns.shown();
    const { rows, unknown } = sorted();
    keepingFocus(head, () => arrange(head, [header({ key: "id", title: "Run" }), ...shown.map(header)]));
    const all = folded(rows, shown);
    keepingFocus(body, () => arrange(body, all.slice(0, most).map((make) => make())));
    const total = columns.rows(listed()).length;
    more.hidden = all.length <= most;
    count.textContent = unknown ? `There is no column ${unknown}.` :
      (rows.length === total ? counted(total, "row") : `${rows.length} of ${total} rows`) + (more.hidden ? "" : `, the first ${most} shown`);
    archived.hidden = !state.runs.some((run) => run.archived);
    archived.firstChild.checked = state.archived;
    compare.disabled = state.runs.length < 2;
    if (where.value !== state.where) where.value = state.where;
  }

  function saveTable() {
    const shown = columns.shown(), { rows } = sorted();
    save("runs.csv", csv([["run", ...shown.map((column) => column.title)],
      ...rows.map((row) => [row.run.id, ...shown.map((column) => column.value(row) ?? "")])]), "text/csv");
  }

  const fetchTable = throttled(async () => {
    if (state.view !== "table") return;
    try {
      columns.receive(await get("table"));
    } catch {
      return; // asked for again with the next news
    }
    show();
  }, 5000);

  onChange((changes) => {
    if (changes.view === "table" || "runs" in changes) fetchTable();
    show();
  });
  return { show: () => { fetchTable(); show(); } };
}
