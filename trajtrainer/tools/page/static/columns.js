// The columns of the table of runs, and its filter, which can refer to columns.

import { state } from "./state.js";
import { ago, date, duration, isMissing, rating, whole } from "./util.js";
import { short } from "./uplot/plot.js";

const MOST_SETTINGS = 6; // shown by default, before the user chooses columns

// Columns about a run's progress. `value` is used for sorting and filtering, `text` is shown.
const PROGRESS = [
  { key: "behavior", title: "Behavior", value: ({ behavior }) => behavior.name },
  { key: "state", title: "State", value: ({ run }) => run.state, full: ({ run }) => run.message || null },
  { key: "step", title: "Step", isNumber: true, value: ({ behavior }) => behavior.step, text: ({ behavior }) => short(behavior.step),
    full: ({ behavior }) => whole(behavior.step) },
  { key: "reward", title: "Mean reward", isNumber: true, value: ({ behavior }) => behavior.reward, hint: "Mean reward of the last summary" },
  { key: "elo", title: "ELO", isNumber: true, value: ({ behavior }) => behavior.elo, text: ({ behavior }) => rating(behavior.elo) },
  { key: "evaluation", title: "Evaluation", isNumber: true, value: ({ behavior }) => behavior.evaluation?.mean,
    hint: "Mean return of the last evaluation",
    text: ({ behavior: { evaluation } }) => (evaluation ? `${short(evaluation.mean)} ± ${short(evaluation.std, 3)}` : "–") },
  { key: "best", title: "Best model", isNumber: true, value: ({ behavior }) => behavior.best?.reward, hint: "The measure by which the best model was chosen" },
  { key: "took", title: "Time", isNumber: true, value: ({ run }) => run.took || null, text: ({ run }) => (run.took ? duration(run.took) : "–"),
    hint: "Training time in seconds, over all sessions" },
  { key: "updated", title: "Updated", isNumber: true, value: ({ run }) => run.updated, text: ({ run }) => ago(run.updated),
    full: ({ run }) => date(run.updated) },
  { key: "labels", title: "Labels", value: ({ run }) => run.labels.join(" ") },
  { key: "note", title: "Note", value: ({ run }) => run.note },
].map((column) => ({
  text: (row) => (column.isNumber ? short(column.value(row)) : column.value(row)),
  ...column,
}));
const RUN = { key: "id", title: "Run", value: ({ run }) => run.id };
const WRITTEN = ["labels", "note"]; // columns with texts that users write
const ALWAYS = ["state", "step", "reward", "took", "updated"];

export class Columns {
  #settings = [];
  #measures = [];
  #places = new Map(); // row's key -> its index in the server's answer
  #varying = [];

  // Takes the server's answer to `api/table`, or null if there is none yet.
  receive(answer) {
    const { rows, settings, measures } = answer ?? { rows: [], settings: [], measures: [] };
    this.#places = new Map(rows.map(([run, folder], i) => [`${run}\n${folder}`, i]));
    this.#settings = settings.map(([key, , texts, places]) => {
      const value = (row) => { const place = places[this.#places.get(row.key)]; return place >= 0 ? texts[place] : null; };
      const isNumber = texts.length > 0 && texts.every((text) => text.trim() !== "" && Number.isFinite(Number(text)));
      return { key: `s:${key}`, title: key, short: key.slice(key.lastIndexOf(".") + 1), isNumber, value,
        text: (row) => value(row) ?? "–", full: value };
    });
    this.#measures = measures.map(([key, title, numbers]) => {
      const value = (row) => numbers[this.#places.get(row.key)] ?? null;
      return { key: `m:${key}`, title, short: title.slice(title.indexOf("/") + 1), isNumber: true, value, text: (row) => short(value(row)) };
    });
    this.#varying = this.#settings.filter((column, i) => {
      const [, isOfARun, texts, places] = settings[i];
      return !isOfARun && (texts.length > 1 || (texts.length === 1 && places.includes(-1)));
    });
  }

  rows(runs) {
    return runs.flatMap((run) => run.behaviors.map((behavior) => ({ key: `${run.id}\n${behavior.folder}`, run, behavior })));
  }

  groups() {
    return [["Progress", PROGRESS], ["Settings", this.#settings], ["Statistics", this.#measures]];
  }

  find(key) {
    return key === "id" ? RUN : this.groups().flatMap(([, some]) => some).find((column) => column.key === key);
  }

  // The columns that the user has chosen; by default, all that have values, and settings in which the runs differ.
  shown() {
    if (state.columns !== null) return state.columns.map((key) => this.find(key)).filter(Boolean);
    const rows = this.rows(state.runs);
    const numBehaviors = new Set(rows.map((row) => row.behavior.name)).size;
    const has = (column) => (column.key === "behavior" ? numBehaviors > 1 :
      ALWAYS.includes(column.key) || rows.some((row) => !isMissing(column.value(row))));
    const isWritten = (column) => WRITTEN.includes(column.key), found = PROGRESS.filter(has);
    return [...found.filter((column) => !isWritten(column)), ...this.#varying.slice(0, MOST_SETTINGS), ...found.filter(isWritten)];
  }

  // Finds a column by its name in a filter: the whole key, the key's last part, or the title without spaces.
  named(name) {
    const wanted = name.toLowerCase();
    const all = [RUN, ...this.groups().flatMap(([, some]) => some)];
    const names = (column) => [column.key, column.key.replace(/^[sm]:/, ""), column.short, column.title]
      .filter(Boolean).map((each) => each.toLowerCase().replaceAll(" ", ""));
    return all.find((column) => names(column)[0] === wanted) ?? all.find((column) => names(column).includes(wanted));
  }
}

// Parses a filter such as "ball reward>10 learning_rate=0.001 state!=failed". All conditions must hold. A plain word is
// searched in names, states, notes and labels.
export function filterOf(text, columns) {
  const tests = [];
  let unknown = null;
  for (const [word, name, sign, quoted] of text.matchAll(/([^\s"<>=!]+)(<=|>=|!=|=|<|>)("[^"]*"?|\S+)|"[^"]*"?|\S+/g)) {
    if (name === undefined) {
      const wanted = word.replaceAll('"', "").toLowerCase();
      tests.push(({ run, behavior }) => [run.id, behavior.name, run.state, run.note, ...run.labels].some((each) => each.toLowerCase().includes(wanted)));
      continue;
    }
    const column = columns.named(name), wanted = quoted.replaceAll('"', "");
    if (!column) { unknown ??= name; continue; }
    tests.push((row) => (column.key === "labels" && ["=", "!="].includes(sign) ? row.run.labels.includes(wanted) === (sign === "=") :
      compared(column.value(row), sign, wanted)));
  }
  return { matches: (row) => tests.every((test) => test(row)), unknown };
}

function compared(value, sign, wanted) {
  if (isMissing(value)) return sign === "!=";
  const [a, b] = [Number(value), Number(wanted)];
  const areNumbers = wanted.trim() !== "" && Number.isFinite(a) && Number.isFinite(b);
  const order = areNumbers ? a - b : String(value).toLowerCase().localeCompare(wanted.toLowerCase());
  return { "=": order === 0, "!=": order !== 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0 }[sign];
}
