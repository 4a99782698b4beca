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

export function short(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
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

export function counted(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

export function duration(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 10) return `${+seconds.toPrecision(2)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (hours < 1) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  if (days < 1) return `${hours} h ${minutes % 60} min`;
  return `${days} d ${hours % 24} h`;
}

export function ago(moment) {
  if (!moment) return "never";
  const seconds = Math.max(0, Date.now() / 1000 - moment);
  return seconds < 10 ? "just now" : `${duration(seconds).replace(/ \d+ s$/, "")} ago`;
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

// Calls `action` at once, and then at most once in `pause` milliseconds; the last call is never lost.
export function throttled(action, pause) {
  let timer = null, again = false;
  return function call() {
    if (timer !== null) { again = true; return; }
    action();
    timer = setTimeout(() => { timer = null; if (again) { again = false; call(); } }, pause);
  };
}
