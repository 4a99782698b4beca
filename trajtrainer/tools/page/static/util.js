// Elements, numbers and times. Text from files goes into text nodes only, never into markup.

export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Makes `wanted` the children of `parent`. Those that stay are not touched: what is selected in them stays selected,
// and what is scrolled or pressed stays so.
export function arrange(parent, wanted) {
  const kept = new Set(wanted);
  for (const child of [...parent.childNodes]) if (!kept.has(child)) child.remove();
  let next = parent.firstChild;
  for (const child of wanted) {
    if (child === next) next = next.nextSibling;
    else parent.insertBefore(child, next);
  }
}

// Remembers elements: `kept(key, data, make)` makes a new one only when the data has changed.
export class Kept {
  #made = new Map();

  get(key, data, make) {
    const text = JSON.stringify(data);
    if (this.#made.get(key)?.text !== text) this.#made.set(key, { text, element: make() });
    return this.#made.get(key).element;
  }

  clear() {
    this.#made.clear();
  }
}

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function short(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e3 && size < 1e4 && size % 1e3 !== 0) return trimmed(Math.round(value), 4); // 1439, but 2k
  for (const [large, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= large && size < 1e12) return trimmed(value / large, digits) + letter;
  return trimmed(value, digits);
}

function trimmed(value, digits) {
  return String(+value.toPrecision(digits)).replace("-", "−");
}

export function whole(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

export function rating(elo) {
  return whole(elo === null || elo === undefined ? null : Math.round(elo));
}

export function counted(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
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

// The server's clock: file times are compared with it, not with the browser's.
let ahead = 0;

export function setClock(now) {
  ahead = now - Date.now() / 1000;
}

function now() {
  return Date.now() / 1000 + ahead;
}

// Texts that change by themselves as time passes.
const MOVING = {
  ago: (moment) => {
    const seconds = Math.max(0, now() - moment);
    return seconds < 10 ? "just now" : `${duration(seconds).replace(/ \d+ s$/, "")} ago`;
  },
  for: (moment) => duration(Math.max(0, Math.floor(now() - moment))),
};

export function ago(moment) {
  return moment ? moving("ago", moment) : "never";
}

export function runningFor(moment) {
  return moving("for", moment);
}

function moving(kind, moment) {
  return el("time", { "data-kind": kind, "data-moment": moment }, MOVING[kind](moment));
}

setInterval(() => {
  for (const element of document.querySelectorAll("time[data-kind]")) {
    const text = MOVING[element.dataset.kind](Number(element.dataset.moment));
    if (element.textContent !== text) element.firstChild.data = text;
  }
}, 1000);

export function date(moment) {
  return moment ? new Date(moment * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : "–";
}

export function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit++; }
  return `${+size.toPrecision(3)} ${units[unit]}`;
}

// Calls `action` at once, and then at most once in `pause` milliseconds; the last call is never lost.
export function throttled(action, pause) {
  let timer = null, again = false;
  return function call() {
    if (timer !== null) { again = true; return; }
    action();
    timer = setTimeout(() => { timer = null; if (again) { again = false; call(); } }, pause);
  };
}

// A button that copies a text. Pages that are neither encrypted nor of this machine have no clipboard; there the text is
// selected in `shown`, and copied from there.
export function copyButton(text, shown = null, label = "Copy") {
  const button = el("button", { type: "button", class: "plain", onclick: async () => {
    const isCopied = await copied(text(), shown);
    button.textContent = isCopied ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (button.textContent = label), 2000);
  } }, label);
  return button;
}

async function copied(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const place = shown ?? document.body.appendChild(el("pre", {}, text));
    getSelection().selectAllChildren(place);
    const isCopied = document.execCommand("copy");
    if (place !== shown) place.remove();
    return isCopied;
  }
}

export function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export function csv(rows) {
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

// A spreadsheet would compute a text that begins like a formula.
function cell(value) {
  if (typeof value !== "string") return value ?? "";
  const text = /^[=+@\t]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function fileName(...words) {
  return words.join("-").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
}

// A button that opens a small form. It is made when it is opened, and closes with Escape or a click elsewhere.
export function menu(label, name, make) {
  const place = el("div", { class: "menu-body" });
  const element = el("details", { class: "menu", ontoggle: () => { if (element.open) place.replaceChildren(...make()); } },
    el("summary", { "aria-label": name, title: name }, label), place);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !element.open) return;
    element.open = false;
    element.firstChild.focus();
  });
  return element;
}

document.addEventListener("pointerdown", (event) => {
  for (const open of document.querySelectorAll("details.menu[open]")) if (!open.contains(event.target)) open.open = false;
});

export function checkbox(label, isOn, onchange) {
  const box = el("input", { type: "checkbox", checked: isOn, onchange: () => onchange(box.checked) });
  return el("label", { class: "check" }, box, label);
}

export function decoded(name) {
  try { return decodeURIComponent(name); } catch { return name; }
}
