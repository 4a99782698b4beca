// Helpers for elements, numbers and times. Text from files only goes into text nodes, never into markup.

import { Component, createRef, h, render } from "./preact/preact.js";
import htm from "./preact/htm.js";

export { Component, createRef, render };
export const html = htm.bind(h);

export function whole(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

export function rating(elo) {
  return whole(elo === null || elo === undefined ? null : Math.round(elo));
}

export function counted(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

export function isMissing(value) {
  return value === null || value === undefined || value === "";
}

export function decoded(name) {
  try { return decodeURIComponent(name); } catch { return name; }
}

// Returns a function for the text of a search box: whether each word of the search occurs in one of the given texts.
export function matcher(search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return (...texts) => words.every((word) => texts.some((text) => text.toLowerCase().includes(word)));
}

export function duration(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 10) return `${+seconds.toPrecision(2)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (hours < 1) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  if (days < 1) return `${hours} h ${minutes % 60} min`;
  return `${days} d ${hours % 24} h`;
}

export function date(moment) {
  return moment ? new Date(moment * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : "–";
}

export function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit++; }
  return `${+size.toPrecision(3)} ${units[unit]}`;
}

// How far the server's clock is ahead of the browser's, in seconds. Times of files are compared with the server's clock.
let ahead = 0;

export function setClock(now) {
  ahead = now - Date.now() / 1000;
}

// Texts that are updated as time passes.
const MOVING = {
  ago: (seconds) => (seconds < 10 ? "just now" : `${duration(seconds).replace(/ \d+ s$/, "")} ago`),
  for: (seconds) => duration(Math.floor(seconds)),
};

function moving(kind, moment) {
  return MOVING[kind](Math.max(0, Date.now() / 1000 + ahead - moment));
}

export function ago(moment) {
  return moment ? html`<time data-kind="ago" data-moment=${moment}>${moving("ago", moment)}</time>` : "never";
}

export function runningFor(moment) {
  return html`<time data-kind="for" data-moment=${moment}>${moving("for", moment)}</time>`;
}

setInterval(() => {
  for (const { dataset, firstChild } of document.querySelectorAll("time[data-kind]")) {
    const text = moving(dataset.kind, Number(dataset.moment));
    if (firstChild.data !== text) firstChild.data = text;
  }
}, 1000);

// A command, and a button that copies it. Browsers give access to the clipboard only to pages that are encrypted or come
// from this machine. On other pages, the command is selected and the selection is copied.
export class Command extends Component {
  async copy(shown) {
    let isCopied = true;
    try {
      await navigator.clipboard.writeText(this.props.text);
    } catch {
      getSelection().selectAllChildren(shown);
      isCopied = document.execCommand("copy");
    }
    this.setState({ said: isCopied ? "Copied" : "Press Ctrl+C" });
    setTimeout(() => this.setState({ said: null }), 2000);
  }

  render({ text }, { said }) {
    return html`<pre class="command">${text}</pre>
      <button type="button" class="plain" onclick=${(event) => this.copy(event.currentTarget.previousElementSibling)}>
        ${said ?? "Copy command"}</button>`;
  }
}

export function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export function csv(rows) {
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

// Converts a value to a CSV cell. Text that spreadsheet programs would evaluate as a formula is quoted.
function cell(value) {
  if (typeof value !== "string") return value ?? "";
  const text = /^[=+@\t]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function fileName(...words) {
  return words.join("-").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
}

// A button that opens a small form. The form is created when it is opened, and Escape or a click elsewhere closes it.
export class Menu extends Component {
  render({ label, name, make }, { isOpen }) {
    const close = ({ key, currentTarget }) => {
      if (key !== "Escape" || !currentTarget.open) return;
      currentTarget.open = false;
      currentTarget.firstChild.focus();
    };
    return html`<details class="menu" ontoggle=${(event) => this.setState({ isOpen: event.currentTarget.open })} onkeydown=${close}>
      <summary aria-label=${name} title=${name}>${label}</summary><div class="menu-body">${isOpen && make()}</div></details>`;
  }
}

document.addEventListener("pointerdown", (event) => {
  for (const open of document.querySelectorAll("details.menu[open]")) if (!open.contains(event.target)) open.open = false;
});

export function checkbox(label, isOn, onchange, title = null) {
  return html`<label class="check" title=${title}>
    <input type="checkbox" checked=${isOn} onchange=${(event) => onchange(event.currentTarget.checked)} />${label}</label>`;
}

export function searchBox(label, text, oninput) {
  return html`<input type="search" placeholder=${label} aria-label=${label} value=${text}
    oninput=${(event) => oninput(event.currentTarget.value)} />`;
}

// `kind`: "plain" has a frame, "link" looks like a link.
export function button(kind, text, onclick) {
  return html`<button type="button" class=${kind} onclick=${onclick}>${text}</button>`;
}
