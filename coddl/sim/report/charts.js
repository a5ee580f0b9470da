"use strict";
// What any chart needs: elements, numbers in words, scales, ticks, a frame, a crosshair, a download.

const byId = (id) => document.getElementById(id);
const charts = {}; // by id: a function that draws it anew

function add(parent, tag, attributes = {}, text = undefined) {
  const space = tag === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI;
  const node = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function swatch(parent, run) {
  add(parent, "span", { class: run.dashed ? "swatch dashed" : "swatch", style: `--colour:${run.colour}` });
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const between = (value, low, high) => Math.min(Math.max(value, low), high);
const plain = (value, most = 0, least = 0) =>
  value.toLocaleString("en", { maximumFractionDigits: most, minimumFractionDigits: least });
const digits = (value) => (value < 10 ? 2 : value < 100 ? 1 : 0); // three that count
const short = (value) => plain(value, digits(value));
const aligned = (value) => plain(value, digits(value), digits(value));
const percent = (part, most = 1, least = 0) => `${plain(100 * part, most, least)} %`;
const count = (number, noun) => `${plain(number)} ${noun}${number === 1 ? "" : "s"}`;

function duration(s, text = short) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => s >= size) ?? [1, "s"];
  return `${text(s / size)} ${unit}`;
}

// A time since the first submission, as exact as a step needs it: "3 d 04:30".
function moment(s, step = 60) {
  const day = Math.floor(s / 86400);
  const parts = [s / 3600 - day * 24, (s / 60) % 60, s % 60];
  const clock = parts.slice(0, step < 60 ? 3 : 2).map((part) => String(Math.floor(part + 1e-6)).padStart(2, "0"));
  if (step >= 86400 || (day && Number(clock.join("")) === 0)) return `${day} d`;
  return day ? `${day} d ${clock.join(":")}` : clock.join(":");
}

const inUnit = {
  seconds: (v) => [duration(v, aligned), `${v} s`],
  part: (v) => [percent(v, 1, 1), `${v}`],
  hours: (v) => [short(v), `${v} h`],
  times: (v) => [`${v.toFixed(2)}×`, `${v}`],
  ratio: (v) => [plain(v, v < 100 ? 2 : 0, v < 100 ? 2 : 0), `${v}`],
  count: (v) => [plain(v), `${v}`],
};

function linear([a, b], [from, to]) {
  const scale = (v) => from + ((v - a) / (b - a || 1)) * (to - from);
  scale.invert = (p) => a + ((p - from) / (to - from)) * (b - a);
  return scale;
}

function logarithmic([a, b], range) {
  const inner = linear([Math.log(a), Math.log(b)], range);
  const scale = (v) => inner(Math.log(Math.max(v, a)));
  scale.invert = (p) => Math.exp(inner.invert(p));
  return scale;
}

// Ticks are [value, text]; there are at most about `most`.
function multiples([a, b], step, text) {
  const first = Math.ceil(a / step - 1e-9);
  const length = Math.max(0, Math.floor(b / step + 1e-9) - first + 1);
  return Array.from({ length }, (_, k) => [(first + k) * step, text((first + k) * step)]);
}

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((k) => k * power >= rough * 0.999);
}

const ticksIn = (text) => (domain, most) => multiples(domain, roundStep((domain[1] - domain[0]) / most), text);
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function timeTicks(domain, most) {
  const rough = (domain[1] - domain[0]) / most;
  const step = CLOCK_STEPS.find((s) => s >= rough) ?? 86400 * roundStep(rough / 86400);
  return multiples(domain, step, (at) => moment(at, step));
}

function logTimeTicks([a, b], most) {
  const round = [0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 21600, 86400, 864000, 8640000, 86400000];
  const within = round.filter((s) => s >= a && s <= b);
  return within.filter((_, k) => k % Math.ceil(within.length / most) === 0).map((s) => [s, duration(s)]);
}

// Draws a chart whenever the room it has changes: `draw(box)` fills an empty box. When it is downloaded,
// `named()` tells the lines that need a name, or the name of the whole.
function chart(id, draw, named) {
  const button = { class: "save", type: "button", "aria-label": "Download this plot as SVG" };
  add(byId(id), "button", button, "SVG").addEventListener("click", () => download(byId(id), named()));
  const box = add(byId(id), "div");
  let width = 0;
  charts[id] = () => {
    width = box.clientWidth;
    box.replaceChildren();
    draw(box);
  };
  new ResizeObserver(() => box.clientWidth !== width && requestAnimationFrame(charts[id])).observe(box);
}

// An empty plot: axes, grid lines and scales.
function frame(box, { height, left, label, xScale, xDomain, xTicks, yDomain, yTicks, xText }) {
  const width = Math.max(260, box.clientWidth);
  const area = { left, right: width - 14, top: 10, bottom: height - 40 };
  const size = { viewBox: `0 0 ${width} ${height}`, width, height };
  const svg = add(box, "svg", { ...size, role: "img", tabindex: 0, "aria-label": label });
  const x = xScale(xDomain, [area.left, area.right]);
  const y = linear(yDomain, [area.bottom, area.top]);
  for (const [at, text] of yTicks(yDomain, (area.bottom - area.top) / 40)) {
    add(svg, "line", { class: "gridline", x1: area.left, x2: area.right, y1: y(at), y2: y(at) });
    add(svg, "text", { x: area.left - 8, y: y(at) + 4, "text-anchor": "end" }, text);
  }
  for (const [at, text] of xTicks(xDomain, (area.right - area.left) / 90)) {
    add(svg, "line", { class: "gridline", x1: x(at), x2: x(at), y1: area.top, y2: area.bottom });
    const anchor = x(at) + 3.5 * text.length > width ? "end" : "middle";
    add(svg, "text", { x: x(at), y: area.bottom + 17, "text-anchor": anchor }, text);
  }
  add(svg, "line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom });
  add(svg, "text", { x: (area.left + area.right) / 2, y: height - 4, "text-anchor": "middle" }, xText);
  return { svg, x, y, area };
}

const KEYS = { ArrowLeft: [-8, 0], ArrowRight: [8, 0], ArrowUp: [0, -14], ArrowDown: [0, 14] };

// As the pointer or the arrow keys move over a plot, shows what show(x, y) tells; hide() when they leave.
function explore({ svg, area }, show, hide) {
  let at = [(area.left + area.right) / 2, area.top];
  const move = (x, y) => {
    at = [between(x, area.left, area.right), between(y, area.top, area.bottom)];
    const corner = svg.getBoundingClientRect();
    tip(show(...at), corner.left + at[0], corner.top + at[1]);
  };
  const leave = () => (tip(null), hide());
  svg.addEventListener("pointermove", (event) => {
    const corner = svg.getBoundingClientRect();
    move(event.clientX - corner.left, event.clientY - corner.top);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    if (!(event.key in KEYS)) return;
    event.preventDefault();
    move(at[0] + KEYS[event.key][0], at[1] + KEYS[event.key][1]);
  });
}

// Shows [heading, [run or null, name, value], ...] next to a point of the screen; null: nothing.
function tip(content, x, y) {
  const box = byId("tip");
  box.hidden = !content;
  if (!content) return;
  box.replaceChildren();
  add(box, "strong", {}, content[0]);
  for (const [run, name, value] of content.slice(1)) {
    const line = add(box, "div");
    if (run) swatch(line, run);
    add(line, "span", {}, name);
    add(line, "b", {}, value);
  }
  const fits = x + 18 + box.offsetWidth < window.innerWidth;
  box.style.left = `${Math.max(4, fits ? x + 18 : x - 18 - box.offsetWidth)}px`;
  box.style.top = `${Math.max(4, Math.min(y + 12, window.innerHeight - box.offsetHeight - 8))}px`;
}

const LOOKS = "fill fill-opacity stroke stroke-opacity stroke-width stroke-dasharray opacity font-size font-family";

// Saves a plot as it looks, under its title and the names of its lines.
function download(figure, { lines = [], name = "" }) {
  const live = figure.querySelector("svg");
  if (!live) return;
  const copy = live.cloneNode(true);
  const nodes = [copy, ...copy.querySelectorAll("*")];
  [live, ...live.querySelectorAll("*")].forEach((node, k) => {
    const style = getComputedStyle(node);
    const kept = LOOKS.split(" ").map((name) => `${name}:${style.getPropertyValue(name)}`);
    nodes[k].setAttribute("style", kept.join(";"));
  });
  copy.querySelectorAll(".cross, .window").forEach((node) => node.remove());
  const [, , width, height] = live.getAttribute("viewBox").split(" ").map(Number);
  const perRow = Math.max(1, Math.floor(width / 220));
  const top = -40 - 20 * Math.ceil(lines.length / perRow);
  const value = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const font = `font-family:${getComputedStyle(live).fontFamily};fill:${value("--ink")}`;
  const title = figure.querySelector("h2").textContent + (name && `: ${name}`);
  copy.prepend(add(copy, "rect", { y: top, width, height: height - top, fill: value("--card") }));
  add(copy, "text", { x: 14, y: top + 24, style: `${font};font-size:16px;font-weight:600` }, title);
  lines.forEach((run, k) => {
    const [x, y] = [14 + 220 * (k % perRow), top + 46 + 20 * Math.floor(k / perRow)];
    const stroke = { stroke: value(run.colour.slice(4, -1)), "stroke-dasharray": run.dashed ? "6 4" : "none" };
    add(copy, "line", { x1: x, x2: x + 20, y1: y - 4, y2: y - 4, "stroke-width": 3, ...stroke });
    add(copy, "text", { x: x + 27, y, style: `${font};font-size:12px` }, run.label);
  });
  copy.setAttribute("viewBox", `0 ${top} ${width} ${height - top}`);
  copy.setAttribute("height", height - top);
  const source = new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(source);
  link.download = `${figure.id}.svg`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
