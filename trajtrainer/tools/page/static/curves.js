// The charts of all runs that are shown: by behavior, and by the first part of the tag.

import { get } from "./api.js";
import { Chart, redrawAll, staleAll } from "./chart.js";
import { bySearch, color, onChange, state, update } from "./state.js";
import { arrange, checkbox, counted, decoded, el, Kept, throttled } from "./util.js";

const FIRST = ["Environment", "Evaluation", "Self-play"];
const OPEN = new Set(["Environment", "Evaluation", "Self-play", "Losses", "Policy"]);
const REWARD = "Environment/Cumulative Reward";

function category(tag) {
  return tag.includes("/") ? tag.slice(0, tag.indexOf("/")) : "Other";
}

function place(name) {
  const first = FIRST.indexOf(name);
  return first >= 0 ? first : FIRST.length + (OPEN.has(name) ? 0 : 1);
}

class Group {
  constructor(behavior, name) {
    this.behavior = behavior;
    this.name = name;
    this.charts = new Map();
    this.count = el("small");
    this.grid = el("div", { class: "grid" });
    this.element = el("details", { class: "group" }, el("summary", {}, name, " ", this.count), this.grid);
    this.element.open = OPEN.has(name);
  }

  show(tags, frame) {
    for (const [tag, chart] of this.charts) if (!tags.includes(tag)) { chart.remove(); this.charts.delete(tag); }
    for (const tag of tags) if (!this.charts.has(tag)) this.charts.set(tag, new Chart(this.behavior, tag, frame));
    const wanted = tags.map((tag) => this.charts.get(tag).element);
    arrange(this.grid, wanted);
    this.count.textContent = tags.length;
  }

  remove() {
    for (const chart of this.charts.values()) chart.remove();
    this.element.remove();
  }
}

export function curvesView(main) {
  const kept = new Kept();
  const sections = new Map(); // behavior's folder -> {element, groups}
  let tags = {};

  const filter = el("input", { type: "search", placeholder: "Search charts", "aria-label": "Search charts", value: state.filter,
    oninput: () => update({ filter: filter.value }) });
  const amount = el("output");
  const smoothing = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smoothing, "aria-label": "Smoothing",
    oninput: () => update({ smoothing: Number(smoothing.value) }) });
  const axis = ["Steps", "Time"].map((name, i) => el("button", { type: "button", onclick: () => update({ byTime: i === 1, span: null }) }, name));
  const logX = checkbox("Log axis", state.logX, (isOn) => update({ logX: isOn }));
  const seeds = checkbox("Seeds together", state.seeds, (isOn) => update({ seeds: isOn }));
  seeds.title = "One line for runs that differ only in their seed: the interquartile mean (with fewer than four seeds, the mean) " +
    "in its 95% bootstrap interval. Thin lines are single seeds.";
  const reset = el("button", { type: "button", class: "plain", onclick: () => update({ span: null }) }, "Reset zoom");
  const legend = el("ul", { class: "legend" });
  const note = el("p", { class: "hint" });
  const reading = el("div", { class: "reading", role: "status" });
  const body = el("div");
  main.append(
    el("div", { class: "tools" }, filter, el("label", { class: "slider" }, "Smoothing", smoothing, amount),
      el("div", { class: "switch", role: "group", "aria-label": "Axis" }, ...axis), logX, seeds, reset),
    legend, reading, note, body);

  const frame = { key: "curves", runs: () => state.shown, color, span: () => state.span, zoom: (span) => update({ span }),
    seeds: () => state.seeds };

  function union() {
    const found = new Map();
    for (const run of state.shown)
      for (const [behavior, names] of Object.entries(tags[run]?.tags ?? {})) {
        if (!found.has(behavior)) found.set(behavior, new Set());
        for (const name of names) found.get(behavior).add(name);
      }
    return found;
  }

  function showCharts() {
    const found = union();
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    for (const [behavior, section] of sections) if (!found.has(behavior)) { dropSection(behavior, section); }
    for (const behavior of [...found.keys()].sort()) {
      const names = [...found.get(behavior)].filter((tag) => words.every((word) => tag.toLowerCase().includes(word)));
      showSection(behavior, names, found.size > 1, words.length > 0);
    }
  }

  function dropSection(behavior, section) {
    for (const group of section.groups.values()) group.remove();
    section.element.remove();
    sections.delete(behavior);
  }

  function showSection(behavior, names, hasTitle, isFound) {
    if (!sections.has(behavior)) {
      const title = el("h2", {}, decoded(behavior));
      sections.set(behavior, { element: el("section", {}, title), title, groups: new Map() });
    }
    const section = sections.get(behavior);
    section.title.hidden = !hasTitle;
    section.element.hidden = names.length === 0;
    const byCategory = new Map();
    for (const tag of names.sort((a, b) => (b === REWARD) - (a === REWARD) || a.localeCompare(b))) {
      if (!byCategory.has(category(tag))) byCategory.set(category(tag), []);
      byCategory.get(category(tag)).push(tag);
    }
    for (const [name, group] of section.groups) if (!byCategory.has(name)) { group.remove(); section.groups.delete(name); }
    const order = [...byCategory.keys()].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
    for (const name of order) {
      if (!section.groups.has(name)) section.groups.set(name, new Group(behavior, name));
      const group = section.groups.get(name);
      if (isFound) group.element.open = true;
      group.show(byCategory.get(name), frame);
    }
    arrange(section.element, [section.title, ...order.map((name) => section.groups.get(name).element)]);
    if (section.element.parentNode !== body) body.append(section.element);
  }

  function showTools() {
    amount.textContent = state.smoothing.toFixed(2);
    axis[0].setAttribute("aria-pressed", !state.byTime);
    axis[1].setAttribute("aria-pressed", state.byTime);
    reset.hidden = state.span === null;
    logX.firstChild.checked = state.logX;
    seeds.firstChild.checked = state.seeds;
    const lines = state.seeds && state.groups.length ? state.groups : state.shown.map((id) => ({ name: id, runs: [id] }));
    const searches = new Map(state.runs.map((run) => [run.id, run.search]));
    const line = ({ name, runs }) => kept.get(name, [color(runs[0]), runs], () =>
      el("li", { title: runs.length > 1 ? runs.join("\n") : null }, el("i", { class: `key c${color(runs[0])}` }), name,
        runs.length > 1 ? el("small", {}, ` ${counted(runs.length, "seed")}`) : null));
    arrange(legend, bySearch(lines, ({ runs }) => searches.get(runs[0])).flatMap(({ search, items }) => {
      if (items.length === 1) return items.map(line);
      const fold = kept.get(`search ${search}`, search, () => el("li", {}, el("details", {}, el("summary"), el("ul", { class: "legend" }))));
      fold.firstChild.firstChild.textContent = `${search}, ${counted(items.length, "line")}`;
      arrange(fold.firstChild.lastChild, items.map(line));
      return [fold];
    }));
    const parts = state.shown.filter((id) => tags[id] && tags[id].read < 0.999);
    reading.hidden = parts.length === 0;
    reading.textContent = parts.length ? "Loading " + parts.map((id) => `${id} (${Math.floor(100 * tags[id].read)}%)`).join(", ") : "";
    note.textContent = state.runs.length === 0 ? "" : state.shown.length === 0 ? "Select runs from the list to see their curves." :
      union().size === 0 && parts.length === 0 ? "No curves yet. The first point appears with the first summary (summary_freq)." : "";
  }

  const fetchTags = throttled(async () => {
    let groups = [];
    if (!state.shown.length) { tags = {}; }
    else {
      try {
        tags = await get("tags", { run: state.shown });
        if (state.seeds) groups = await get("groups", { run: state.shown });
      } catch { return; }
    }
    const hasChanged = JSON.stringify(groups) !== JSON.stringify(state.groups);
    if (hasChanged) update({ groups }); // also the list's colors
    showCharts();
    showTools();
    if (hasChanged) redrawAll();
  }, 1500);
  const stale = () => staleAll(frame);
  const refetch = throttled(stale, 1000);
  const refetchSeeds = throttled(stale, 5000); // an interval takes the server longer than a curve

  onChange((changes) => {
    const has = (...names) => names.some((name) => name in changes);
    if (has("shown", "seeds")) { fetchTags(); stale(); }
    if (has("filter")) { filter.value = state.filter; showCharts(); }
    if (has("smoothing", "axes", "logX")) redrawAll();
    if (has("byTime", "span")) stale();
    if (has("runs", "shown", "smoothing", "byTime", "logX", "seeds", "span")) showTools();
    if (changes.view === "curves") stale();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

  return {
    show: () => { fetchTags(); showTools(); },
    changed: (runs) => {
      if (!runs.some((id) => state.shown.includes(id))) return;
      fetchTags();
      if (state.seeds) refetchSeeds(); else refetch();
    },
  };
}
