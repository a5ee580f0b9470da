// Draws the page from the data in it. Whatever comes from a trace goes in as text, never as markup.

const data = JSON.parse(byId("data").textContent);
const plotted = data.runs.filter((run) => run.cdf);
plotted.forEach((run, at) => Object.assign(run, { colour: `var(--c${at % 7})`, dashed: at >= 7, hidden: false }));
const lastEnd = Math.max(0, ...plotted.map((run) => run.end_s)) || 1;
let opened = data.opened; // the run whose GPU timeline is shown,
let shown = data.window_s; // and from when to when
const when = (at) => moment(at, shown[1] - shown[0] < 3600 ? 1 : 60);

// ---- lines ----

// `curve(run)` gives [xs, ys], or nothing to draw; `at(run, x)` the value under the crosshair, or null. A spec may
// have a second, faint curve, `under`, and more lines for the box at the pointer, `more`.
function drawLines(box, spec) {
  const drawn = plotted.filter((run) => !run.hidden && spec.curve(run));
  const label = `${spec.name}. ${drawn.map((run) => `${run.label}: ${spec.describe(run)}`).join("; ")}`;
  const sketch = frame(box, { left: 54, label, ...spec, ...spec.domains(drawn) });
  const { svg, x, y, area } = sketch;
  if (!drawn.length) add(svg, "text", { x: area.left + 12, y: area.top + 20 }, "Nothing to show.");
  for (const run of drawn) {
    const style = `stroke:${run.colour};stroke-dasharray:${run.dashed ? "6 4" : "none"}`;
    const line = ([xs, ys], look) => {
      const d = xs.map((at, k) => `${k ? "L" : "M"}${x(at).toFixed(1)} ${y(ys[k]).toFixed(1)}`).join("");
      add(svg, "path", { class: look, d, style, "data-run": plotted.indexOf(run) });
    };
    if (spec.under?.(run)) line(spec.under(run), "line thin under");
    line(spec.curve(run), spec.overTime ? "line thin" : "line");
  }
  const cross = add(svg, "g", { class: "cross" });
  const show = (px) => {
    const known = drawn.map((run) => [run, spec.at(run, x.invert(px))]).filter(([, value]) => value !== null);
    cross.replaceChildren();
    add(cross, "line", { x1: px, x2: px, y1: area.top, y2: area.bottom });
    for (const [run, value] of known) add(cross, "circle", { cx: px, cy: y(value), r: 4, style: `fill:${run.colour}` });
    known.sort((one, other) => other[1] - one[1]);
    const told = ([run, value]) => [[run, run.label, spec.text(value)], ...(spec.more?.(run, x.invert(px)) ?? [])];
    return [spec.heading(x.invert(px)), ...known.flatMap(told)];
  };
  explore(sketch, show, () => cross.replaceChildren());
  if (spec.overTime && plotted[opened]?.timeline) brush(sketch);
}

const CDF = {
  name: "Distribution of job completion times",
  height: 470,
  xScale: logarithmic,
  xTicks: logTimeTicks,
  yTicks: ticksIn((v) => percent(v, 0)),
  xText: "completion time of a job (logarithmic)",
  curve: ({ cdf }) => {
    const twice = (values) => values.flatMap((value) => [value, value]); // for a curve in steps
    return cdf.jct_s.length && [twice(cdf.jct_s), [0, ...twice(cdf.part).slice(0, -1)]];
  },
  domains: (drawn) => {
    const low = drawn.map(({ cdf }) => cdf.jct_s.find((jct, k) => jct > 0 && cdf.part[k] >= 0.005) ?? 1);
    const domain = [Math.min(...low), Math.max(...drawn.map(({ cdf }) => cdf.jct_s.at(-1)))];
    return { xDomain: drawn.length && domain[0] < domain[1] ? domain : [1, 86400], yDomain: [0, 1] };
  },
  at: ({ cdf }, x) => cdf.part[cdf.jct_s.findLastIndex((jct) => jct <= x)] ?? 0,
  heading: (x) => `within ${duration(x)}`,
  text: (v) => percent(v),
  describe: (run) => `half of the jobs within ${duration(run.numbers.p50_jct_s)}`,
};

// A series of a run is a list of means over equal parts of its time.
const pointsOf = (run, means) => means && [means.map((_, k) => ((k + 0.5) / means.length) * run.end_s), means];
const overTime = (key, more) => ({
  height: 190,
  overTime: true,
  xScale: linear,
  xTicks: timeTicks,
  yTicks: ticksIn((v) => plain(v, 3)),
  xText: "time since the first submission",
  curve: (run) => pointsOf(run, run[key]),
  domains: (drawn) => {
    const end = Math.max(...plotted.filter((run) => !run.hidden).map((run) => run.end_s), 0) || lastEnd;
    return { xDomain: [0, end], yDomain: [0, 1.06 * Math.max(...drawn.map((run) => Math.max(...run[key])), 0) || 1] };
  },
  at: (run, x) => (x > run.end_s ? null : run[key][Math.floor((x / run.end_s) * run[key].length)] ?? run[key].at(-1)),
  heading: (x) => `at ${when(x)}`,
  text: short,
  describe: (run) => `mean ${short(sum(run[key]) / run[key].length)}, at most ${short(Math.max(...run[key]))}`,
  ...more,
});
const ACTIVE = overTime("active", { name: "Jobs in the system over time" });
const WAITING = overTime("waiting", { name: "Jobs without GPUs over time" });
const BUSY = overTime("busy", {
  name: "Part of the GPUs in use over time",
  height: 200,
  domains: (drawn) => ({ ...ACTIVE.domains(drawn), yDomain: [0, 1.02] }),
  yTicks: ticksIn((v) => percent(v, 0)),
  text: (v) => percent(v),
  describe: (run) => `mean ${percent(run.numbers.utilization)}`,
});
const NODES = overTime("nodes", {
  name: "Nodes held over time",
  height: 220,
  under: (run) => pointsOf(run, run.filled),
  text: (v) => `${short(v)} nodes`,
  more: ({ node_changes: { time_s, because } }, x) => {
    const last = time_s.findLastIndex((at) => at <= x);
    return last < 0 ? [] : [[null, `${when(time_s[last])}: ${because[last]}`, ""]];
  },
});

// ---- the window of the GPU timeline ----

const marks = new Map(); // svg of a plot over time -> a function that marks the window on it
const [UNIT, UNIT_S] = lastEnd >= 6 * 3600 ? ["h", 3600] : ["min", 60];
const MOVES = { earlier: [-0.5, -0.5], later: [0.5, 0.5], closer: [0.25, -0.25], wider: [-0.5, 0.5] };

function clamped([a, b]) {
  const length = between(b - a, lastEnd / 1e5, lastEnd);
  const from = between(a, 0, lastEnd - length);
  return [from, from + length];
}

// Moves both ends by parts of the window's length; any other name brings back the first window.
function moved(name) {
  return name in MOVES ? shown.map((at, k) => at + MOVES[name][k] * (shown[1] - shown[0])) : data.window_s;
}

function look(range) {
  shown = clamped(range);
  for (const [svg, place] of marks) svg.isConnected ? place() : marks.delete(svg);
  ["from", "to"].forEach((id, k) => (byId(id).value = Number((shown[k] / UNIT_S).toFixed(2))));
  charts.shares?.();
}

function brush({ svg, x, area }) {
  const mark = add(svg, "rect", { class: "window", y: area.top, height: area.bottom - area.top });
  const pixel = (event) => between(event.clientX - svg.getBoundingClientRect().left, area.left, area.right);
  const place = () => {
    const [from, to] = shown.map((at) => between(x(at), area.left, area.right));
    mark.setAttribute("x", from);
    mark.setAttribute("width", Math.max(1, to - from));
  };
  let start = null;
  svg.classList.add("brushed");
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = pixel(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (start === null || Math.abs(pixel(event) - start) < 4) return;
    look([start, pixel(event)].sort((a, b) => a - b).map(x.invert));
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => (start = null));
  marks.set(svg, place);
  place();
}

function controls() {
  plotted.forEach((run, at) => {
    const option = add(byId("run"), "option", { value: at }, run.label);
    option.disabled = !run.timeline;
  });
  byId("run").value = opened;
  byId("unit").textContent = UNIT;
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("controls").addEventListener("click", ({ target: { dataset } }) => dataset.move && look(moved(dataset.move)));
  byId("controls").addEventListener("change", ({ target }) => {
    opened = Number(byId("run").value);
    const range = ["from", "to"].map((id) => byId(id).valueAsNumber * UNIT_S);
    look(target.type === "number" && range[0] < range[1] ? range : shown);
  });
  look(shown);
}

// ---- GPUs held by each job ----

const ROWS = 60; // that fit on a screen
const SIZES = ["1", "2", "3–4", "5–8", "9–16", "17–32", "33+"]; // GPUs that share a colour
const sizeOf = (gpus) => Math.min(SIZES.length - 1, Math.ceil(Math.log2(gpus)));

// The jobs of a run, each with the times at which what it holds changes.
function jobsOf({ timeline }) {
  const jobs = timeline.row.map((row, k) => ({
    // The models of a pool's own jobs are named after the jobs, numbers first.
    name: `#${data.has_job_numbers ? "" : `${row} `}${timeline.models[timeline.model[k]]}`,
    requested: timeline.requested[k],
    submitted: timeline.submitted_s[k],
    finish: timeline.finish_s[k] ?? Infinity,
    changes: [], // [time, GPUs from then on]
  }));
  timeline.job.forEach((job, k) => jobs[job].changes.push([timeline.time_s[k], timeline.gpus[k]]));
  return jobs;
}

// What a job holds at each of these times, which ascend.
function heldAt(job, times) {
  let k = -1;
  return times.map((time) => {
    while (k + 1 < job.changes.length && job.changes[k + 1][0] <= time) k += 1;
    return k < 0 ? 0 : job.changes[k][1];
  });
}

// [from, to, GPUs] of the times in which a job holds some, within a window.
function spansOf({ changes }, [a, b], until) {
  const spans = changes.map(([from, gpus], k) => [Math.max(from, a), Math.min(changes[k + 1]?.[0] ?? until, b), gpus]);
  return spans.filter(([from, to, gpus]) => gpus > 0 && to > from);
}

function drawShares(box) {
  const run = plotted[opened];
  const line = run?.timeline;
  if (!line) return;
  run.list ??= jobsOf(run);
  const present = run.list.filter((job) => job.submitted < shown[1] && job.finish > shown[0]);
  for (const job of present) {
    job.spans = spansOf(job, shown, line.to_s);
    job.gpuTime = sum(job.spans.map(([from, to, gpus]) => (to - from) * gpus));
  }
  const stacked = byId("view").value === "stack";
  const most = new Set([...present].sort((one, other) => other.gpuTime - one.gpuTime).slice(0, ROWS));
  const jobs = present.filter((job) => (stacked ? job.gpuTime > 0 : most.has(job)));
  const [from, to, first, last] = [...shown, line.from_s, line.to_s].map(when);
  const less = jobs.length < present.length ? ` with the most GPU time of ${plain(present.length)}` : "";
  const part = line.from_s > 0 || line.to_s < run.end_s ? `. This file holds ${first} to ${last} of it` : "";
  const idle = line.left_out ? `, without ${count(line.left_out, "job")} that wait all the time` : "";
  byId("shares-what").textContent = `${run.label}, ${from} to ${to}: ${count(jobs.length, "job")}${less}${part}${idle}`;
  const label = `GPUs held by ${count(jobs.length, "job")} of ${run.label} from ${from} to ${to}`;
  const spec = { label, xScale: linear, xDomain: shown, xTicks: timeTicks, xText: ACTIVE.xText };
  const { sketch, show, hide } = (stacked ? drawStack : drawRows)(box, run, jobs, spec);
  explore(sketch, show, hide);
  coverMissing(sketch, [shown[0], Math.min(shown[1], line.from_s)]);
  coverMissing(sketch, [Math.max(shown[0], line.to_s), Math.min(shown[1], run.end_s)]);
}

function coverMissing({ svg, x, area }, [from, to]) {
  if (from >= to) return;
  const rect = { x: x(from), width: x(to) - x(from), y: area.top, height: area.bottom - area.top };
  add(add(svg, "rect", { class: "missing", ...rect }), "title", {}, "not in this file");
}

function tellJob(job, time) {
  const gpus = heldAt(job, [time])[0];
  const early = time < job.submitted && "not submitted";
  const late = time >= job.finish && "finished";
  return [
    job.name,
    [null, `at ${moment(time, 1)}`, early || late || (gpus ? count(gpus, "GPU") : "waiting")],
    [null, "requested", count(job.requested, "GPU")],
    [null, "submitted", when(job.submitted)],
    [null, "completion time", job.finish < Infinity ? duration(job.finish - job.submitted) : "not finished"],
  ];
}

// One row a job. Taller and stronger bars are more GPUs.
function drawRows(box, run, jobs, spec) {
  const tall = jobs.length > 30 ? 14 : 19;
  const names = jobs.map(({ name }) => (name.length > 24 ? `${name.slice(0, 23)}…` : name));
  const left = 18 + 6.4 * Math.max(9, ...names.map((name) => name.length));
  const key = 26; // room for what the colours mean
  const height = key + jobs.length * tall + 56;
  const sketch = frame(box, { ...spec, height, left, yDomain: [0, 1], yTicks: () => [] });
  const { svg, x, area } = sketch;
  const most = Math.max(1, ...jobs.flatMap((job) => job.spans.map((span) => span[2])));
  const at = (time) => x(time).toFixed(1);
  const bars = SIZES.map(() => "");
  let [stays, ends] = ["", ""];
  jobs.forEach((job, k) => {
    const middle = area.top + key + (k + 0.5) * tall;
    add(svg, "text", { class: "name", x: left - 8, y: middle + 4, "text-anchor": "end" }, names[k]);
    const [from, to] = [Math.max(job.submitted, shown[0]), Math.min(job.finish, shown[1], run.end_s)];
    stays += `M${at(from)} ${middle}H${at(to)}${from > shown[0] ? `M${at(from)} ${middle - 4}v8` : ""}`;
    if (job.finish <= shown[1]) ends += `M${at(to)} ${middle - 3}l5 3l-5 3z`;
    for (const [since, until, gpus] of job.spans) {
      const high = (tall - 2) * (0.25 + (0.75 * Math.log2(gpus + 1)) / Math.log2(most + 1));
      bars[sizeOf(gpus)] += `M${at(since)} ${middle - high / 2}H${at(until)}v${high}H${at(since)}z`;
    }
  });
  add(svg, "path", { class: "stay", d: stays });
  bars.forEach((d, size) => add(svg, "path", { d, style: `fill:var(--g${size})` }));
  add(svg, "path", { class: "ends", d: ends });
  add(svg, "text", { x: left - 8, y: area.top + 11, "text-anchor": "end" }, "GPUs held");
  const wide = Math.min(66, (area.right - left) / SIZES.length);
  SIZES.slice(0, sizeOf(most) + 1).forEach((text, size) => {
    add(svg, "rect", { x: left + wide * size, y: area.top, width: 14, height: 13, style: `fill:var(--g${size})` });
    add(svg, "text", { x: left + wide * size + 18, y: area.top + 11 }, text);
  });
  const show = (px, py) => {
    const job = jobs[Math.floor((py - area.top - key) / tall)];
    return job ? tellJob(job, x.invert(px)) : null;
  };
  return { sketch, show, hide: () => {} };
}

// All jobs on top of each other, the oldest at the bottom.
function drawStack(box, run, jobs, spec) {
  const yDomain = [0, run.timeline.gpus_total];
  const sketch = frame(box, { ...spec, height: 440, left: 54, yDomain, yTicks: ticksIn((v) => plain(v, 1)) });
  const { svg, x, y, area } = sketch;
  let times = [...new Set(jobs.flatMap((job) => job.spans.flatMap(([from, to]) => [from, to])))].sort((a, b) => a - b);
  if (times.length > 600) times = Array.from({ length: 601 }, (_, k) => shown[0] + ((shown[1] - shown[0]) * k) / 600);
  const across = times.map((time) => x(time).toFixed(1));
  const base = times.map(() => 0);
  const paths = jobs.map((job, order) => {
    const held = heldAt(job, times);
    let d = "";
    for (let k = 0; k < times.length - 1; k += 1) {
      let [upper, lower] = ["", ""]; // of one piece without a break
      for (; k < times.length - 1 && held[k] > 0; k += 1) {
        lower = `L${across[k + 1]} ${y(base[k])}H${across[k]}${lower}`;
        base[k] += held[k];
        upper += `${upper ? "L" : "M"}${across[k]} ${y(base[k])}H${across[k + 1]}`;
      }
      if (upper) d += `${upper}${lower}z`;
    }
    const fill = `fill:var(--c${order % 7});fill-opacity:${Math.floor(order / 7) % 2 ? 0.6 : 0.9}`;
    return add(svg, "path", { class: "area", d, style: fill });
  });
  const light = (found) => paths.forEach((path, k) => path.classList.toggle("lit", k === found));
  const show = (px, py) => {
    let level = 0;
    const found = jobs.findIndex((job) => (level += heldAt(job, [x.invert(px)])[0]) > y.invert(py));
    light(found);
    return found < 0 ? null : tellJob(jobs[found], x.invert(px));
  };
  return { sketch, show, hide: () => light(-1) };
}

// ---- header, table, legend ----

function header() {
  // Word by word, for a line must not end inside a name like max-min.
  for (const word of data.finding.split(" ")) byId("finding").append(add(byId("finding"), "span", {}, word), " ");
  for (const [name, value] of data.facts) {
    const fact = add(byId("facts"), "div");
    add(fact, "dt", {}, name);
    add(fact, "dd", {}, value);
  }
  for (const note of data.notes) add(byId("notes"), "li", {}, note);
}

function tableRow(body, run, worst) {
  const row = add(body, "tr");
  const name = add(row, "th", { scope: "row" });
  if (run.colour) swatch(name, run);
  name.append(run.label);
  for (const { key, unit } of data.columns) {
    const value = run.numbers[key];
    const [text, exact] = value === null ? ["–", "not known"] : inUnit[unit](value);
    const best = run.best.includes(key);
    const cell = add(row, "td", { title: best ? `${exact}, the best` : exact, class: best ? "best" : key });
    add(cell, "span", {}, text);
    if (key === "slower") cell.style.setProperty("--part", value / worst);
  }
  return row;
}

function table() {
  const heads = add(add(byId("table"), "thead"), "tr");
  const body = add(byId("table"), "tbody");
  const worst = Math.max(...data.runs.map((run) => run.numbers.slower ?? 0));
  const rows = data.runs.map((run) => [run, tableRow(body, run, worst)]);
  const sort = (key, sign) => {
    const rank = ([run]) => (run.numbers[key] === null ? Infinity : sign * run.numbers[key]);
    const sorted = key === "run" ? rows : [...rows].sort((one, other) => rank(one) - rank(other) || 0);
    body.append(...sorted.map(([, row]) => row));
    const state = (head) => (head.dataset.key === key ? (sign > 0 ? "ascending" : "descending") : "none");
    for (const head of heads.children) head.setAttribute("aria-sort", state(head));
  };
  for (const { key, name, help } of [{ key: "run", name: "Run", help: "In the order given" }, ...data.columns]) {
    const head = add(heads, "th", { scope: "col", title: help, "data-key": key });
    const click = () => sort(key, head.getAttribute("aria-sort") === "ascending" ? -1 : 1);
    add(head, "button", { type: "button" }, name).addEventListener("click", click);
  }
  sort("avg_jct_s", 1);
}

function legend() {
  const lines = () => [...document.querySelectorAll(".line")];
  const fade = (keep) => lines().forEach((line) => line.classList.toggle("faded", keep(plotted[line.dataset.run])));
  for (const run of plotted) {
    const button = add(byId("legend"), "button", { type: "button", "aria-pressed": true, title: "Show or hide" });
    swatch(button, run);
    button.append(run.label);
    button.addEventListener("click", () => {
      run.hidden = !run.hidden;
      button.setAttribute("aria-pressed", !run.hidden);
      Object.values(charts).forEach((draw) => draw());
    });
    button.addEventListener("pointerenter", () => fade((other) => !run.hidden && other !== run));
    button.addEventListener("pointerleave", () => fade(() => false));
  }
}

header();
table();
legend();
controls();
for (const id of ["busy", "shares"]) byId(id).hidden = !plotted[opened]?.timeline; // no events were kept
const named = () => ({ lines: plotted.filter((run) => !run.hidden) });
byId("nodes").hidden = !plotted.some((run) => run.nodes); // all GPUs are there all the time
for (const [id, spec] of Object.entries({ cdf: CDF, active: ACTIVE, waiting: WAITING, busy: BUSY, nodes: NODES })) {
  chart(id, (box) => drawLines(box, spec), named);
}
chart("shares", drawShares, () => ({ name: plotted[opened].label }));
