// Everything about one run: progress, warnings, where the time goes, files, settings and logs.

import { address, get, stop } from "./api.js";
import { Chart } from "./chart.js";
import { Notes } from "./notes.js";
import { chip, labels, progress } from "./runs.js";
import { AT_WORK, onChange, state, update } from "./state.js";
import { ago, arrange, bytes, copyButton, counted, date, decoded, duration, el, Kept, rating, runningFor, short, throttled, whole } from "./util.js";

const KINDS = ["environment", "act", "collect", "learn", "save", "evaluate", "start and end", "other"];
const FILM = /\.(mp4|webm|gif)$/i;
const WORDS = { restart: "restart", warning: "warning", error: "error" };

function table(rows) {
  return el("div", { class: "wide" }, el("table", {}, el("tbody", {}, ...rows)));
}

function row(...cells) {
  return el("tr", {}, ...cells.map((content) => (content instanceof HTMLTableCellElement ? content : el("td", {}, content))));
}

// A cell whose content is a number.
function num(text) {
  return el("td", { class: "n" }, text);
}

export function runView(main) {
  let run = null, problem = "", wanted = 0, log = null;
  const open = new Map(["files", "records", "time", "machine", "films", "resume"].map((key) => [key, true])); // which parts are unfolded
  const kept = new Kept();

  function part(key, title, count, ...children) {
    const element = el("details", { class: "part", ontoggle: () => open.set(key, element.open) },
      el("summary", {}, title, " ", count === null ? null : el("small", {}, count)), ...children);
    element.open = open.get(key) ?? false;
    return element;
  }

  function innerPart(key, title, ...children) {
    const element = part(key, title, null, ...children);
    element.className = "inner";
    return element;
  }

  // ---- the head: state, and the button that stops it
  const stopButton = el("button", { type: "button", class: "stop" });
  const stopNote = el("span", { class: "soft small", role: "status" });
  let isSure = null;
  function unsure() {
    clearTimeout(isSure);
    isSure = null;
  }
  stopButton.addEventListener("click", async () => {
    if (isSure === null) {
      isSure = setTimeout(() => { isSure = null; showStop(); }, 4000);
      return showStop();
    }
    unsure();
    try {
      await stop(run.id);
      stopNote.textContent = "Stopping. Everything is saved first.";
    } catch (error) {
      stopNote.textContent = error.message;
    }
    fetchRun();
  });

  function showStop() {
    stopButton.hidden = !run.can_stop;
    stopButton.textContent = isSure === null ? "Stop" : "Save and stop?";
    stopButton.classList.toggle("sure", isSure !== null);
  }

  function title() {
    return el("div", { class: "head title" }, el("h2", {}, run.id), chip(run), labels(run), stopButton, stopNote);
  }

  // ---- the model, for Unity: of each behavior the one that was saved last
  function exportedModels() {
    const onnx = run.files.filter((file) => file.path.endsWith(".onnx"));
    const exported = onnx.filter((file) => file.folder === "");
    const newest = [...onnx].sort((a, b) => (b.step ?? 0) - (a.step ?? 0)).slice(0, 1);
    return exported.length ? exported : newest;
  }

  function download() {
    const found = exportedModels();
    if (!found.length) return null;
    return el("p", { class: "download" }, ...found.map((file) => el("a", { class: "primary", download: "",
      href: address("file", { run: run.id, path: file.path }) }, `Download ${file.path.split("/").pop()}`)),
    el("small", {}, `${bytes(found[0].size)}, saved `, ago(found[0].changed), "."));
  }

  function resume() {
    const { command, remark } = run.resume;
    if (AT_WORK.includes(run.state) || !(command || remark)) return null;
    const shown = command ? el("pre", { class: "command" }, command) : null;
    const more = run.state === "finished" ? "It has all its steps: raise max_steps in configuration.yaml first. " : "";
    return part("resume", "Continue this run", null, el("p", { class: "soft small" }, more, remark), shown,
      shown ? copyButton(() => command, shown, "Copy command") : null);
  }

  // ---- the charts: reward and rating on top, and what the machine has to do
  let span = null;
  const charts = new Map();
  const frame = { key: "run", runs: () => (run ? [run.id] : []), color: () => 0, span: () => span, seeds: () => false, zoom: (wanted) => {
    span = wanted;
    for (const chart of charts.values()) chart.stale();
  } };
  const progressCharts = el("div", { class: "grid" }), machineCharts = el("div", { class: "grid" });
  const machine = part("machine", "Machine", null, machineCharts);

  function showCharts() {
    const wanted = Object.entries(run.charts).flatMap(([behavior, tags]) => tags.map((tag) => [`${behavior}\n${tag}`, behavior, tag]));
    const keys = wanted.map(([key]) => key);
    for (const [key, chart] of charts) if (!keys.includes(key)) { chart.remove(); charts.delete(key); }
    for (const [key, behavior, tag] of wanted) if (!charts.has(key)) charts.set(key, new Chart(behavior, tag, frame));
    const isMachine = ([, , tag]) => tag.startsWith("Perf/");
    const own = wanted.filter(isMachine), first = own[0]?.[1]; // all behaviors have the same machine
    arrange(progressCharts, wanted.filter((each) => !isMachine(each)).map(([key]) => charts.get(key).element));
    arrange(machineCharts, own.filter(([, behavior]) => behavior === first).map(([key]) => charts.get(key).element));
    progressCharts.hidden = !progressCharts.hasChildNodes();
    machine.hidden = !machineCharts.hasChildNodes();
  }

  // ---- films that lie in the run's folder
  function films() {
    const found = run.files.filter((file) => FILM.test(file.path)).sort((a, b) => b.changed - a.changed);
    if (!found.length) return null;
    const choice = found.length > 1 ? el("select", { "aria-label": "Film", onchange: () => play(choice.value) },
      ...found.map((file) => el("option", { value: file.path }, file.path))) : null;
    const screen = el("div", { class: "film" });
    function play(path) {
      const url = address("film", { run: run.id, path });
      screen.replaceChildren(path.toLowerCase().endsWith(".gif") ? el("img", { src: url, alt: `Film ${path}` }) :
        el("video", { src: url, controls: true, loop: true, muted: true, playsinline: true, preload: "metadata", "aria-label": `Film ${path}` }));
    }
    play(found[0].path);
    return part("films", "Film", found.length > 1 ? found.length : found[0].path, choice, screen);
  }

  function message() {
    if (run.message) return el("p", { class: `message ${run.state}` }, run.message);
    return null;
  }

  function facts() {
    const isOver = !AT_WORK.includes(run.state);
    const sessions = run.sessions > 1 ? ` in ${run.sessions} sessions` : "";
    const found = [
      run.began ? ["started", date(run.began)] : null,
      run.resumed ? ["resumed", date(run.resumed)] : null,
      isOver ? ["ended", date(run.ended ?? run.updated)] : ["updated", ago(run.updated)],
      isOver ? (run.time.seconds ? ["took", duration(run.time.seconds), sessions] : null) :
        run.since === null ? null : ["running for", runningFor(run.since), sessions],
      ...Object.entries(run.versions),
    ].filter(Boolean);
    return el("dl", { class: "facts" }, ...found.map(([name, value, more]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value, more))));
  }

  function behavior(each) {
    const best = each.best, tested = each.evaluation;
    const facts = [
      ["mean reward", short(each.reward), "of the last summary"],
      each.elo === null ? null : ["ELO", rating(each.elo)],
      tested ? ["evaluated", `${short(tested.mean)} ± ${short(tested.std)}`, `${whole(tested.episodes)} episodes at step ${whole(tested.steps)}`] : null,
      best ? ["best model", short(best.reward), `${best.measure ?? `by ${best.by ?? "reward"}`}, step ${whole(best.steps)}`] : null,
      each.stopped ? ["stopped by", each.stopped.by ?? "", `at step ${whole(each.stopped.steps)}`] : null,
    ].filter(Boolean);
    const share = each.max_steps && each.step !== null ? ` of ${whole(each.max_steps)}` : "";
    return el("article", { class: "card" }, el("h3", {}, each.name),
      el("div", { class: "far" }, progress(each), el("span", { class: "soft small" }, `step ${whole(each.step)}${share}`)),
      el("dl", { class: "facts big" }, ...facts.map(([name, value, more]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, value), more ? el("small", {}, more) : null))));
  }

  function lessons() {
    if (!run.lessons.length) return null;
    return el("article", { class: "card" }, el("h3", {}, "Lessons"), ...run.lessons.map((lesson) =>
      el("div", { class: "lesson" }, el("span", {}, lesson.parameter),
        el("span", { class: "dots", title: `lesson ${lesson.number + 1}` },
          ...Array.from({ length: Math.min(20, lesson.count ?? 0) }, (_, i) => el("i", { class: i <= lesson.number ? "done" : "" }))),
        el("b", {}, lesson.name || `lesson ${lesson.number + 1}${lesson.count ? ` of ${lesson.count}` : ""}`))));
  }

  function records() {
    const found = run.records.filter((record) => record.kind !== "start").reverse();
    if (!found.length && !Object.keys(run.starts).length) return null;
    const count = (kind) => found.filter((record) => record.kind === kind).length;
    const counts = [["restart", "environment restart"], ["warning", "warning"], ["error", "error"]]
      .map(([kind, name]) => [count(kind), name]).filter(([number]) => number).map(([number, name]) => counted(number, name));
    const resumed = Object.entries(run.starts).map(([name, steps]) =>
      el("p", { class: "soft small" }, `${decoded(name)} resumed from step ${steps.map(whole).join(", ")}.`));
    return part("records", "Warnings and errors", counts.join(", "), ...resumed,
      el("ol", { class: "records" }, ...found.map((record) => el("li", { class: record.kind },
        el("time", {}, record.time), el("b", {}, WORDS[record.kind]), el("span", {}, record.text)))));
  }

  function time() {
    const { seconds, kinds, blocks } = run.time;
    const total = Object.values(kinds).reduce((sum, each) => sum + each, 0);
    if (!total) return null;
    const bar = el("div", { class: "bar" });
    const keys = el("ul", { class: "legend" });
    for (const kind of KINDS.filter((name) => kinds[name])) {
      const share = 100 * kinds[kind] / total;
      const piece = el("span", { class: `c${KINDS.indexOf(kind)}`, title: `${kind}: ${duration(kinds[kind])}` });
      piece.style.width = `${share}%`;
      bar.append(piece);
      keys.append(el("li", {}, el("i", { class: `key c${KINDS.indexOf(kind)}` }), `${kind} `, el("small", {}, `${short(share, 3)}%`)));
    }
    const rows = blocks.map(([name, depth, spent, count, isThread]) => {
      const label = el("span", {}, name, isThread ? el("small", {}, " thread") : null);
      label.style.paddingLeft = `${depth}em`;
      return row(label, num(duration(spent)), num(`${short(100 * spent / seconds, 3)}%`), num(`${whole(count)}×`));
    });
    return part("time", "Where the time goes", duration(seconds), bar, keys,
      innerPart("blocks", counted(rows.length, "timer"), table(rows)));
  }

  // ---- files: a row for each, made again only when its file has changed
  const models = el("tbody"), others = el("tbody");
  const numModels = el("small"), numOthers = el("span");
  const otherFiles = innerPart("others", numOthers, el("div", { class: "wide" }, el("table", {}, others)));
  const filesPart = part("files", "Models and files", numModels, el("div", { class: "models" }, el("table", {}, models)), otherFiles);

  function fileRow(file) {
    return kept.get(`file ${file.path}`, file, () => row(
      el("a", { href: address("file", { run: run.id, path: file.path }), download: "" }, file.path),
      num(bytes(file.size)), num(ago(file.changed))));
  }

  function files() {
    if (!run.files.length) return null;
    const isModel = (file) => /\.(onnx|pt)$/.test(file.path);
    const first = run.files.filter(isModel).sort((a, b) => b.changed - a.changed);
    const rest = run.files.filter((file) => !isModel(file));
    numModels.textContent = counted(first.length, "model");
    numOthers.textContent = counted(rest.length, "other file");
    otherFiles.hidden = rest.length === 0;
    arrange(models, first.map(fileRow));
    arrange(others, rest.map(fileRow));
    return filesPart;
  }

  function settings() {
    if (!run.settings.length) return null;
    return part("settings", "Settings", run.settings.length, run.command ? el("pre", { class: "command" }, run.command) : null,
      table(run.settings.map(([key, value]) => row(el("code", {}, key), value))));
  }

  // ---- the log, which keeps its place while all else is made anew
  const choice = el("select", { "aria-label": "Log", onchange: () => { log = choice.value; fetchLog(); } });
  const text = el("pre", { class: "log", tabindex: 0 });
  const logNote = el("span", { class: "soft small" });
  const logPart = el("details", { class: "part", ontoggle: () => { if (logPart.open) fetchLog(); } },
    el("summary", {}, "Log"), el("div", { class: "tools" }, choice, logNote), text);

  function showLogs() {
    const names = run.files.filter((file) => file.folder === "run_logs" && /\.log(\.\d+)?$|\.\d+\.log$/.test(file.path))
      .map((file) => file.path.slice("run_logs/".length)).sort((a, b) => (b === "trainer.log") - (a === "trainer.log") || a.localeCompare(b));
    logPart.hidden = names.length === 0;
    if (names.join() !== [...choice.options].map((option) => option.value).join())
      choice.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    if (!names.includes(log)) log = names[0] ?? null;
    if (log !== null) choice.value = log;
  }

  const fetchLog = throttled(async () => {
    if (!logPart.open || log === null || !run) return;
    try {
      const found = await get("log", { run: run.id, name: log });
      const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 30 || !text.textContent;
      if (text.textContent !== found.text) text.textContent = found.text;
      logNote.textContent = found.is_cut ? `the end of a log of ${bytes(found.size)}` : "";
      if (isAtEnd) text.scrollTop = text.scrollHeight;
    } catch (error) {
      logNote.textContent = error.message;
    }
  }, 1500);

  // ---- all of it
  const content = el("div"), overview = el("div", { class: "overview" });
  const alone = el("p", {}, el("button", { type: "button", class: "link",
    onclick: () => update({ shown: [run.id], chosen: true, view: "curves", span: null }) }, "Show only this run's curves"));
  const notes = new Notes(() => fetchRun());
  main.append(content, logPart);

  function show() {
    if (state.run === null || run === null) {
      logPart.hidden = true;
      const hint = state.run === null ? (state.runs.length ? "Select a run from the list." : "") : problem || "Loading…";
      content.replaceChildren(el("p", { class: "hint" }, hint));
      return;
    }
    showStop();
    showLogs();
    showCharts();
    notes.show(run);
    arrange(overview, [
      kept.get("cards", [run.behaviors, run.lessons], () => el("div", { class: "cards" }, ...run.behaviors.map(behavior), lessons())),
      progressCharts]);
    arrange(content, [
      kept.get("problem", problem, () => (problem ? el("p", { class: "message failed" }, problem) : null)),
      kept.get("title", [run.id, run.state, run.message, run.labels], title),
      kept.get("message", [run.state, run.message], message),
      kept.get("damage", run.is_damaged, () => (run.is_damaged ?
        el("p", { class: "message failed" }, "An event file is damaged. Its curves end at the damage.") : null)),
      kept.get("facts", [run.state, run.began, run.resumed, run.ended, run.updated, run.since, run.sessions, run.time.seconds, run.versions], facts),
      kept.get("download", [run.id, exportedModels()], download),
      overview,
      alone,
      kept.get("films", [run.id, run.files.filter((file) => FILM.test(file.path))], films),
      notes.element,
      kept.get("resume", [run.resume, run.state], resume),
      kept.get("records", [run.records, run.starts], records),
      machine,
      kept.get("time", run.time, time),
      files(),
      kept.get("settings", [run.settings, run.command], settings),
    ].filter(Boolean));
    fetchLog();
  }

  const fetchRun = throttled(async () => {
    const number = ++wanted, id = state.run;
    if (id === null || state.view !== "run") return;
    try {
      const found = await get("run", { run: id });
      if (number !== wanted || id !== state.run) return;
      run = found;
      problem = "";
    } catch (error) {
      if (number !== wanted) return;
      problem = error.message; // of a run that was deleted the last that was seen stays
    }
    show();
  }, 1000);

  const staleCharts = throttled(() => charts.forEach((chart) => chart.stale()), 1000);

  onChange((changes) => {
    if ("run" in changes && run && run.id !== changes.run) {
      run = span = null;
      for (const chart of charts.values()) chart.remove();
      charts.clear();
      kept.clear();
      unsure(); // the first click was another run's
      problem = stopNote.textContent = text.textContent = "";
      show();
    }
    if ("run" in changes || "view" in changes) fetchRun();
    if ("runs" in changes && run === null) show();
    if (changes.view === "run" || "byTime" in changes) for (const chart of charts.values()) chart.stale();
  });

  return {
    show: () => { show(); fetchRun(); },
    changed: (runs) => {
      if (!runs.includes(state.run)) return;
      fetchRun();
      if (state.view === "run") staleCharts();
    },
  };
}
