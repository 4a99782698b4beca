// The settings of two runs, side by side: those that differ, and below them those that are the same.

import { get } from "./api.js";
import { chip } from "./runs.js";
import { listed, onChange, state, update } from "./state.js";
import { duration, el, Kept, rating, short, throttled, whole } from "./util.js";

export function compareView(main) {
  const details = [null, null];
  let problem = "", wanted = 0;
  const kept = new Kept();
  const choices = [0, 1].map((i) => el("select", { "aria-label": i ? "Second run" : "First run",
    onchange: () => update({ compared: state.compared.map((id, j) => (i === j ? choices[i].value : id)) }) }));
  const swap = el("button", { type: "button", class: "plain", onclick: () => update({ compared: [...state.compared].reverse() }) }, "Swap");
  const search = el("input", { type: "search", placeholder: "Search settings", "aria-label": "Search settings", oninput: () => show() });
  const content = el("div");
  main.append(el("div", { class: "tools" }, choices[0], "and", choices[1], swap, search), content);

  // The runs to begin with: those whose curves are shown, or else the newest.
  function chosen() {
    const newest = listed().map((run) => run.id);
    const candidates = [...new Set([...state.shown, ...newest])].filter((id) => state.runs.some((run) => run.id === id));
    const known = state.compared.map((id) => (state.runs.some((run) => run.id === id) ? id : null));
    return known.map((id, i) => id ?? candidates.find((each) => each !== known[1 - i] && each !== (i ? known[0] ?? candidates[0] : null)) ?? null);
  }

  function showChoices() {
    const ids = state.runs.map((run) => run.id);
    for (const [i, choice] of choices.entries()) {
      if (ids.join("\n") !== [...choice.options].map((option) => option.value).join("\n"))
        choice.replaceChildren(...ids.map((id) => el("option", { value: id }, id)));
      choice.value = chosen()[i] ?? "";
    }
  }

  function settingsOf(run, isRenamed) {
    const name = isRenamed ? run.behaviors[0].name : null;
    return new Map(run.settings.map(([key, value]) =>
      [name !== null && key.startsWith(`behaviors.${name}.`) ? `behaviors.*.${key.slice(name.length + 11)}` : key, value]));
  }

  function results(a, b) {
    const rows = [["state", (run) => chip(run)], ["took", (run) => (run.took ? duration(run.took) : "–")]];
    const names = [...new Set([...a.behaviors, ...b.behaviors].map((each) => each.name))];
    for (const name of names) {
      const of = (run) => run.behaviors.find((each) => each.name === name);
      const add = (title, value) => { if (value(a) !== "–" || value(b) !== "–") rows.push([names.length > 1 ? `${name}: ${title}` : title, value]); };
      add("step", (run) => whole(of(run)?.step));
      add("mean reward", (run) => short(of(run)?.reward));
      add("ELO", (run) => rating(of(run)?.elo));
      add("evaluation", (run) => (of(run)?.evaluation ? `${short(of(run).evaluation.mean)} ± ${short(of(run).evaluation.std)}` : "–"));
    }
    return table(["result", a.id, b.id], rows.map(([title, value]) => [title, value(a), value(b)]));
  }

  function table(titles, rows) {
    return el("div", { class: "wide" }, el("table", { class: "compare" },
      el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, ...rows.map(([title, ...values]) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, title)),
        ...values.map((value) => el("td", {}, value)))))));
  }

  function show() {
    const [a, b] = details;
    if (problem || !a || !b) {
      const few = state.runs.length < 2 ? "Two runs are needed to compare their settings." : "Loading…";
      content.replaceChildren(el("p", { class: "hint", role: "status" }, problem || few));
      return;
    }
    const isRenamed = a.behaviors.length === 1 && b.behaviors.length === 1 && a.behaviors[0].name !== b.behaviors[0].name;
    const [left, right] = [settingsOf(a, isRenamed), settingsOf(b, isRenamed)];
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const keys = [...new Set([...left.keys(), ...right.keys()])].filter((key) => key !== "checkpoint_settings.run_id" && words.every((word) => key.toLowerCase().includes(word)));
    const differing = keys.filter((key) => left.get(key) !== right.get(key));
    const same = keys.filter((key) => left.get(key) === right.get(key));
    const element = kept.get("all", [a.id, b.id, a.behaviors, b.behaviors, a.state, b.state, differing, [...left], [...right], words], () => el("div", {},
      results(a, b),
      el("h3", {}, differing.length ? `${differing.length} ${differing.length === 1 ? "setting differs" : "settings differ"}` : words.length ? "None of these differ" : "All settings are the same"),
      differing.length ? table(["setting", a.id, b.id], differing.map((key) => [key, left.get(key) ?? "–", right.get(key) ?? "–"])) : null,
      same.length ? el("details", { class: "part" }, el("summary", {}, "The same in both ", el("small", {}, same.length)),
        table(["setting", "both"], same.map((key) => [key, left.get(key)]))) : null));
    if (content.firstChild !== element) content.replaceChildren(element);
  }

  async function fetchBoth() {
    if (state.view !== "compare" || state.runs.length === 0) return;
    const number = ++wanted, ids = chosen();
    if (ids.includes(null)) { details.fill(null); show(); return; }
    try {
      const found = await Promise.all(ids.map((run) => get("run", { run })));
      if (number !== wanted) return;
      found.forEach((each, i) => (details[i] = each));
      problem = "";
    } catch (error) {
      problem = error.message;
    }
    show();
  }
  const refetch = throttled(fetchBoth, 3000);

  onChange((changes) => {
    if (!["runs", "compared", "view"].some((name) => name in changes)) return;
    showChoices();
    if ("runs" in changes && details[0]) refetch(); else fetchBoth();
  });
  return { show: () => { showChoices(); show(); fetchBoth(); } };
}
