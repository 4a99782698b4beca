// The view of a single run: progress, warnings, where the time goes, files, settings and logs.

import { address, Answer, post } from "./api.js";
import { Chart } from "./chart.js";
import { notes } from "./notes.js";
import { chip, labels, progress } from "./runs.js";
import { AT_WORK, refresh, state, update } from "./state.js";
import { ago, button, bytes, Command, Component, counted, createRef, date, decoded, duration, html, rating, runningFor, whole } from "./util.js";
import { short } from "./uplot/plot.js";

const KINDS = ["environment", "act", "collect", "learn", "save", "evaluate", "start and end", "other"];
const FILM = /\.(mp4|webm|gif)$/i;
const details = new Answer("run", 1000), log = new Answer("log", 1500);
const open = new Map(["files", "records", "time", "machine", "films", "resume"].map((key) => [key, true])); // which parts are expanded
let own = { id: null }; // the state of this view for the current run: {id, span, isSure, said, log, film}

export function staleRun(runs) {
  if (runs.includes(state.run)) refetch();
}

function refetch() {
  details.stale();
  log.stale();
  refresh();
}

function part(key, title, count, content, kind = "part") {
  return html`<details key=${key} class=${kind} open=${open.get(key) ?? false}
    ontoggle=${(event) => { open.set(key, event.currentTarget.open); if (key === "log") refresh(); }}>
    <summary>${title} <small>${count}</small></summary>${content}</details>`;
}

function table(rows) {
  return html`<div class="wide"><table><tbody>${rows}</tbody></table></div>`;
}

// ---- the head: the run's state, and the button that stops the run
async function stop(run) {
  const mine = own;
  mine.isSure = !mine.isSure;
  if (mine.isSure) {
    setTimeout(() => { mine.isSure = false; refresh(); }, 4000);
    return update({});
  }
  try {
    await post("stop", run.id);
    mine.said = "Stopping. Everything is saved first.";
  } catch (error) {
    mine.said = error.message;
  }
  refetch();
}

function head(run) {
  return html`<div class="head title"><h2>${run.id}</h2>${chip(run)}${labels(run)}
    <button type="button" class=${own.isSure ? "stop sure" : "stop"} hidden=${!run.can_stop} onclick=${() => stop(run)}>${
      own.isSure ? "Save and stop?" : "Stop"}</button>
    <span class="soft small" role="status">${own.said}</span></div>`;
}

function facts(list, kind = "facts") {
  return html`<dl class=${kind}>${list.filter(Boolean).map(([name, value, more]) =>
    html`<div><dt>${name}</dt><dd>${value}</dd>${more && html`<small>${more}</small>`}</div>`)}</dl>`;
}

function times(run) {
  const isOver = !AT_WORK.includes(run.state), sessions = run.sessions > 1 ? ` in ${run.sessions} sessions` : "";
  return facts([
    run.began && ["started", date(run.began)],
    run.resumed && ["resumed", date(run.resumed)],
    isOver ? ["ended", date(run.ended ?? run.updated)] : ["updated", ago(run.updated)],
    isOver && run.time.seconds && ["took", [duration(run.time.seconds), sessions]],
    !isOver && run.since !== null && ["running for", [runningFor(run.since), sessions]],
    ...Object.entries(run.versions),
  ]);
}

// Links to the models for Unity: the exported model of each behavior, or the newest checkpoint if nothing was exported.
function download(run) {
  const onnx = run.files.filter((file) => file.path.endsWith(".onnx")), exported = onnx.filter((file) => file.folder === "");
  const found = exported.length ? exported : onnx.sort((a, b) => (b.step ?? 0) - (a.step ?? 0)).slice(0, 1);
  const link = ({ path }) => html`<a class="primary" download="" href=${address("file", { run: run.id, path })}>Download ${path.split("/").pop()}</a>`;
  return found.length > 0 && html`<p class="download">${found.map(link)}<small>${bytes(found[0].size)}, saved ${ago(found[0].changed)}.</small></p>`;
}

function resume({ resume: { command, remark }, state: word }) {
  if (AT_WORK.includes(word) || !(command || remark)) return null;
  const more = word === "finished" ? "This run is finished: raise max_steps in configuration.yaml first. " : "";
  return part("resume", "Continue this run", null, html`<p class="soft small">${more}${remark}</p>
    ${command && html`<${Command} text=${command} />`}`);
}

function films(run) {
  const found = run.files.filter((file) => FILM.test(file.path)).sort((a, b) => b.changed - a.changed);
  if (!found.length) return null;
  const { path, changed } = found.find((file) => file.path === own.film) ?? found[0];
  const url = address("film", { run: run.id, path }), about = `Film ${path}`, key = `${path} ${changed}`;
  return part("films", "Film", found.length > 1 ? found.length : path, html`
    ${found.length > 1 && html`<select aria-label="Film" value=${path} onchange=${(event) => { own.film = event.currentTarget.value; update({}); }}>
      ${found.map((file) => html`<option key=${file.path} value=${file.path}>${file.path}</option>`)}</select>`}
    <div class="film">${/\.gif$/i.test(path) ? html`<img key=${key} src=${url} alt=${about} />` :
      html`<video key=${key} src=${url} controls loop muted playsinline preload="metadata" aria-label=${about} />`}</div>`);
}

function behavior(each) {
  const { best, evaluation: tested, stopped } = each;
  const share = each.max_steps && each.step !== null ? ` of ${whole(each.max_steps)}` : "";
  return html`<article class="card"><h3>${each.name}</h3>
    <div class="far">${progress(each)}<span class="soft small">step ${whole(each.step)}${share}</span></div>
    ${facts([
      ["mean reward", short(each.reward), "of the last summary"],
      each.elo !== null && ["ELO", rating(each.elo)],
      tested && ["evaluated", `${short(tested.mean)} ± ${short(tested.std)}`,
        `${whole(tested.episodes)} episodes at step ${whole(tested.steps)}`],
      best && ["best model", short(best.reward), `${best.measure ?? `by ${best.by ?? "reward"}`}, step ${whole(best.steps)}`],
      stopped && ["stopped by", stopped.by ?? "", `at step ${whole(stopped.steps)}`],
    ], "facts big")}</article>`;
}

function lesson({ parameter, number, count, name }) {
  const which = `lesson ${number + 1}`;
  const dots = Array.from({ length: Math.min(20, count ?? 0) }, (_, i) => html`<i class=${i <= number ? "done" : ""} />`);
  return html`<div class="lesson"><span>${parameter}</span><span class="dots" title=${which}>${dots}</span>
    <b>${name || `${which}${count ? ` of ${count}` : ""}`}</b></div>`;
}

function records(run) {
  const found = run.records.filter((record) => record.kind !== "start").reverse(), starts = Object.entries(run.starts);
  if (!found.length && !starts.length) return null;
  const counts = [["restart", "environment restart"], ["warning", "warning"], ["error", "error"]]
    .map(([kind, name]) => [found.filter((record) => record.kind === kind).length, name])
    .filter(([number]) => number).map(([number, name]) => counted(number, name));
  return part("records", "Warnings and errors", counts.join(", "), html`
    ${starts.map(([name, steps]) => html`<p class="soft small">${decoded(name)} resumed from step ${steps.map(whole).join(", ")}.</p>`)}
    <ol class="records">${found.map(({ kind, time, text }) => html`<li class=${kind}><time>${time}</time><b>${kind}</b><span>${text}</span></li>`)}</ol>`);
}

function time({ time: { seconds, kinds, blocks } }) {
  const total = Object.values(kinds).reduce((sum, each) => sum + each, 0), some = KINDS.filter((kind) => kinds[kind]);
  if (!total) return null;
  const share = (spent, of) => 100 * spent / of, color = (kind) => `c${KINDS.indexOf(kind)}`;
  const rows = blocks.map(([name, depth, spent, count, isThread]) => html`<tr>
    <td><span style=${{ paddingLeft: `${depth}em` }}>${name}${isThread && html`<small> thread</small>`}</span></td>
    <td class="n">${duration(spent)}</td><td class="n">${short(share(spent, seconds), 3)}%</td><td class="n">${whole(count)}×</td></tr>`);
  return part("time", "Where the time goes", duration(seconds), html`
    <div class="bar">${some.map((kind) => html`<span class=${color(kind)} title=${`${kind}: ${duration(kinds[kind])}`}
      style=${{ width: `${share(kinds[kind], total)}%` }} />`)}</div>
    <ul class="legend">${some.map((kind) => html`<li><i class=${`key ${color(kind)}`} />${kind} <small>${
      short(share(kinds[kind], total), 3)}%</small></li>`)}</ul>
    ${part("blocks", counted(rows.length, "timer"), null, table(rows), "inner")}`);
}

function files(run) {
  const rows = (some) => some.map(({ path, size, changed }) => html`<tr key=${path}>
    <td><a href=${address("file", { run: run.id, path })} download="">${path}</a></td>
    <td class="n">${bytes(size)}</td><td class="n">${ago(changed)}</td></tr>`);
  const isModel = (file) => /\.(onnx|pt)$/.test(file.path), models = run.files.filter(isModel).sort((a, b) => b.changed - a.changed);
  const others = run.files.filter((file) => !isModel(file));
  return run.files.length > 0 && part("files", "Models and files", counted(models.length, "model"), html`
    <div class="models"><table><tbody>${rows(models)}</tbody></table></div>
    ${others.length > 0 && part("others", counted(others.length, "other file"), null, table(rows(others)), "inner")}`);
}

function settings({ settings: found, command }) {
  return found.length > 0 && part("settings", "Settings", found.length, html`${command && html`<pre class="command">${command}</pre>`}
    ${table(found.map(([key, value]) => html`<tr key=${key}><td><code>${key}</code></td><td>${value}</td></tr>`))}`);
}

// The text of a log. If the user has scrolled to the end, it stays at the end when the text grows.
class LogText extends Component {
  element = createRef();

  componentDidUpdate() {
    if (this.isAtEnd) this.element.current.scrollTop = this.element.current.scrollHeight;
  }

  render({ text }) {
    const { scrollHeight, scrollTop, clientHeight } = this.element.current ?? {};
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < 30;
    return html`<pre ref=${this.element} class="log" tabindex="0">${text}</pre>`;
  }
}

function logs(run) {
  const names = run.files.filter((file) => file.folder === "run_logs" && /\.log(\.\d+)?$|\.\d+\.log$/.test(file.path))
    .map((file) => file.path.slice("run_logs/".length)).sort((a, b) => (b === "trainer.log") - (a === "trainer.log") || a.localeCompare(b));
  if (!names.length) return null;
  const name = names.includes(own.log) ? own.log : names[0], found = open.get("log") && log.of({ run: run.id, name });
  return part("log", "Log", null, html`<div class="tools">
      <select aria-label="Log" value=${name} onchange=${(event) => { own.log = event.currentTarget.value; update({}); }}>
        ${names.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
      <span class="soft small">${log.problem || (found?.is_cut && `the end of a log of ${bytes(found.size)}`)}</span></div>
    <${LogText} text=${found?.text} />`);
}

export function RunView() {
  const run = state.run && details.of({ run: state.run }), problem = details.problem;
  if (!run) return html`<p class="hint">${state.run ? problem || "Loading…" : state.runs.length > 0 && "Select a run from the list."}</p>`;
  if (own.id !== run.id) own = { id: run.id, span: null, isSure: false, said: "", log: null, film: null };
  const frame = { key: "run", runs: [run.id], color: () => 0, span: own.span, seeds: false, zoom: (span) => { own.span = span; update({}); } };
  const chart = (name, tag) => html`<${Chart} key=${`${name}\n${tag}`} behavior=${name} tag=${tag} frame=${frame} />`;
  // Reward and rating come first. The load of the machine is only shown once, because it is the same for all behaviors.
  const isMachine = (tag) => tag.startsWith("Perf/"), behaviors = Object.entries(run.charts);
  const top = behaviors.flatMap(([name, tags]) => tags.filter((tag) => !isMachine(tag)).map((tag) => chart(name, tag)));
  const [first, tags] = behaviors.find(([, some]) => some.some(isMachine)) ?? [null, []];
  const failed = [problem, run.is_damaged && "An event file is damaged. Its curves end there."];
  return html`${failed.map((text) => text && html`<p class="message failed">${text}</p>`)}
    ${head(run)}
    ${run.message && html`<p class=${`message ${run.state}`}>${run.message}</p>`}
    ${times(run)}
    ${download(run)}
    <div class="overview">
      <div class="cards">${run.behaviors.map(behavior)}
        ${run.lessons.length > 0 && html`<article class="card"><h3>Lessons</h3>${run.lessons.map(lesson)}</article>`}</div>
      ${top.length > 0 && html`<div class="grid">${top}</div>`}</div>
    <p>${button("link", "Show only this run's curves", () => update({ shown: [run.id], chosen: true, view: "curves", span: null }))}</p>
    ${films(run)}
    ${notes(run, refetch)}
    ${resume(run)}
    ${records(run)}
    ${first !== null && part("machine", "Machine", null, html`<div class="grid">${tags.filter(isMachine).map((tag) => chart(first, tag))}</div>`)}
    ${time(run)}
    ${files(run)}
    ${settings(run)}
    ${logs(run)}`;
}
