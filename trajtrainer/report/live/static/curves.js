// The charts of all runs that are shown: by behavior, and by the first part of the tag.

import { get } from "./api.js";
import { Chart, redrawAll, staleAll } from "./chart.js";
import { color, onChange, state, update } from "./state.js";
import { arrange, el, Kept, throttled } from "./util.js";

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

  show(tags, zoom) {
    for (const [tag, chart] of this.charts) if (!tags.includes(tag)) { chart.remove(); this.charts.delete(tag); }
    for (const tag of tags) if (!this.charts.has(tag)) this.charts.set(tag, new Chart(this.behavior, tag, zoom));
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
  const reset = el("button", { type: "button", class: "plain", onclick: () => update({ span: null }) }, "Reset zoom");
  const legend = el("ul", { class: "legend" });
  const note = el("p", { class: "hint" });
  const reading = el("div", { class: "reading", role: "status" });
  const body = el("div");
  main.append(
    el("div", { class: "tools" }, filter, el("label", { class: "slider" }, "Smoothing", smoothing, amount),
      el("div", { class: "switch", role: "group", "aria-label": "Axis" }, ...axis), reset),
    legend, reading, note, body);

  const zoom = (span) => update({ span });

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
      group.show(byCategory.get(name), zoom);
    }
    arrange(section.element, [section.title, ...order.map((name) => section.groups.get(name).element)]);
    if (section.element.parentNode !== body) body.append(section.element);
  }

  function showTools() {
    amount.textContent = state.smoothing.toFixed(2);
    axis[0].setAttribute("aria-pressed", !state.byTime);
    axis[1].setAttribute("aria-pressed", state.byTime);
    reset.hidden = state.span === null;
    arrange(legend, state.shown.map((id) =>
      kept.get(id, color(id), () => el("li", {}, el("i", { class: `key c${color(id)}` }), id))));
    const parts = state.shown.filter((id) => tags[id] && tags[id].read < 0.999);
    reading.hidden = parts.length === 0;
    reading.textContent = parts.length ? "Loading " + parts.map((id) => `${id} (${Math.floor(100 * tags[id].read)}%)`).join(", ") : "";
    note.textContent = state.runs.length === 0 ? "" : state.shown.length === 0 ? "Select runs from the list to see their curves." :
      union().size === 0 && parts.length === 0 ? "No curves yet. The first point appears with the first summary (summary_freq)." : "";
  }

  const fetchTags = throttled(async () => {
    if (!state.shown.length) { tags = {}; }
    else {
      try { tags = await get("tags", { run: state.shown }); } catch { return; }
    }
    showCharts();
    showTools();
  }, 1500);
  const refetch = throttled(staleAll, 1000);

  onChange((changes) => {
    if ("shown" in changes) { fetchTags(); staleAll(); }
    if ("filter" in changes) showCharts();
    if ("smoothing" in changes) redrawAll();
    if ("byTime" in changes || "span" in changes) staleAll();
    if ("runs" in changes || "shown" in changes || "smoothing" in changes || "byTime" in changes || "span" in changes) showTools();
    if (changes.view === "curves") staleAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

  return {
    show: () => { fetchTags(); showTools(); },
    changed: (runs) => {
      if (!runs.some((id) => state.shown.includes(id))) return;
      fetchTags();
      refetch();
    },
  };
}

function decoded(name) {
  try { return decodeURIComponent(name); } catch { return name; }
}
