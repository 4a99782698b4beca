"use strict";
// Tells the numbers of a chart below the pointer.
const tip = document.getElementById("tip");

function short(value) {
  const size = Math.abs(value);
  for (const [large, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= large && size < 1e12) return +(value / large).toPrecision(4) + letter;
  return String(+value.toPrecision(4));
}

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle; else high = middle;
  }
  return step - steps[low] < steps[high] - step ? low : high;
}

function row(line, index) {
  const entry = document.createElement("div");
  const key = document.createElement("i");
  key.className = "c" + line.color;
  const name = document.createElement("span");
  name.textContent = line.name;
  const value = document.createElement("b");
  value.textContent = short(line.middle[index]);
  if (line.low && line.low[index] !== line.high[index])
    value.textContent += ` (${short(line.low[index])} to ${short(line.high[index])})`;
  entry.append(key, name, value);
  return entry;
}

for (const figure of document.querySelectorAll(".chart")) {
  const svg = figure.querySelector("svg"), cursor = svg.querySelector(".cursor");
  const [left, right] = svg.dataset.x.split(",").map(Number), [top, bottom] = svg.dataset.y.split(",").map(Number);
  let content = null;
  const leave = () => { tip.hidden = true; cursor.toggleAttribute("hidden", true); };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    content ??= JSON.parse(figure.querySelector("script").textContent);
    const box = svg.getBoundingClientRect(), [begin, end] = content.x;
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const step = begin + (x - left) / (right - left) * (end - begin);
    const lines = content.lines.filter((line) => step >= line.steps[0] - (end - begin) / 50 &&
      step <= line.steps[line.steps.length - 1] + (end - begin) / 50);
    if (x < left - 4 || x > right + 4 || !lines.length) return leave();
    const indices = lines.map((line) => nearest(line.steps, step));
    const at = lines[0].steps[indices[0]];
    const place = left + (at - begin) / (end - begin) * (right - left);
    for (const [name, value] of [["x1", place], ["x2", place], ["y1", top], ["y2", bottom]]) cursor.setAttribute(name, value);
    cursor.toggleAttribute("hidden", false);
    const title = document.createElement("small");
    title.textContent = `step ${at.toLocaleString("en")}`;
    tip.replaceChildren(title, ...lines.map((line, i) => row(line, indices[i])));
    tip.hidden = false;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4)) + "px";
  });
}
