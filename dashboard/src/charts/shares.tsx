// GPUs over time, by job: bands that lie on each other below the line of what the pool has.

import { useMemo, useRef, useState } from "react";
import type uPlot from "uplot";
import { colourOf, fillOf, textOn } from "../colours";
import { Moment } from "../parts/basics";
import { jobLink } from "../route";
import type { Shapes } from "../server/api";
import { inkOf, useTheme } from "../theme";
import { counted, duration, shortTime } from "../words";
import { bandAt, stack, type Band } from "./bands";
import { axis, Plot, TIME_PADDING_PX, timeAxis, type Ink, type Options } from "./plot";

type Timeline = Shapes["TimelineView"];
type Span = Shapes["SpanView"];

const BANDS_MAX = 150_000;

interface Props {
  timeline: Timeline;
  height: number;
  unit: string;
  isOneJob?: boolean; // then pauses are marked, and a click leads nowhere
}

interface Hover {
  x: number;
  y: number;
  span: Span;
}

export function Shares({ timeline, height, unit, isOneJob = false }: Props) {
  const { theme } = useTheme();
  const [hover, setHover] = useState<Hover>();
  const { data, top } = useMemo(() => outline(timeline, isOneJob), [timeline, isOneJob]);
  const shown = useRef({ timeline, top, bands: [] as Band[] });
  shown.current = { ...shown.current, timeline, top };

  const options = (): Options => {
    const ink = inkOf(theme);
    return {
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      padding: [8, TIME_PADDING_PX, 0, 0],
      scales: {
        x: { time: true },
        y: { range: () => [0, Math.max(1, shown.current.top)] },
      },
      axes: [
        timeAxis(ink),
        axis(ink, { size: 44, incrs: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096] }),
      ],
      series: [
        {},
        {
          label: `${unit}s of the pool`,
          stroke: isOneJob ? "transparent" : ink.strong,
          width: 1.5,
          dash: [5, 4],
          paths: (plot, index) => steps(plot, index),
          points: { show: false },
        },
      ],
      hooks: {
        drawAxes: [
          (plot) => {
            shown.current.bands = drawBands(plot, shown.current.timeline, ink, isOneJob);
          },
        ],
        setCursor: [(plot) => setHover(hoverAt(plot, shown.current))],
        ready: [
          (plot) => {
            if (isOneJob) return;
            plot.over.addEventListener("click", () => {
              const found = hoverAt(plot, shown.current);
              if (found && plot.select.width < 3) location.hash = jobLink(found.span.job);
            });
          },
        ],
      },
    };
  };

  return (
    <div className="shares">
      <Plot
        label={summary(timeline, unit)}
        height={height}
        data={data}
        options={options}
        remake={`${theme} ${isOneJob}`}
      />
      {hover && <Tip hover={hover} until_s={timeline.until_s} unit={unit} />}
    </div>
  );
}

function Tip({ hover: { x, y, span }, until_s, unit }: { hover: Hover; until_s: number; unit: string }) {
  const end_s = span.to_s ?? until_s;
  return (
    <div className="tip" style={{ left: x, top: y }}>
      <strong>
        <i style={{ backgroundColor: colourOf(span.job) }} /> {span.name}
      </strong>{" "}
      job {span.job}
      <br />
      {counted(span.gpus, unit)} for {duration(end_s - span.from_s)}
      <br />
      since <Moment at_s={span.from_s} />
      {span.paused_s ? `, after a pause of ${shortTime(span.paused_s)}` : ""}
    </div>
  );
}

function summary({ spans, since_s, until_s }: Timeline, unit: string): string {
  const jobs = new Set(spans.map((span) => span.job)).size;
  const holding = spans.filter((span) => span.to_s === null);
  const held = holding.reduce((sum, span) => sum + span.gpus, 0);
  const length = duration(until_s - since_s);
  return `${unit}s by job over ${length}: ${counted(jobs, "job")}; ${held} held at the end`;
}

/** The line of the pool's GPUs, and how high the chart must be; of one job as high as its share. */
function outline({ gpus, spans, since_s, until_s }: Timeline, isOneJob: boolean): {
  data: uPlot.AlignedData;
  top: number;
} {
  const times = [since_s];
  const values: (number | null)[] = [null];
  for (const { at_s, gpus: count } of gpus) {
    if (at_s > until_s) break;
    if (at_s <= since_s) values[0] = count;
    else times.push(at_s) && values.push(count);
  }
  if (times[times.length - 1] !== until_s) {
    times.push(until_s);
    values.push(values[values.length - 1] ?? null);
  }
  const held = mostHeld(spans);
  if (isOneJob) return { data: [times, values], top: held * 1.25 }; // with room for the pauses
  const most = values.reduce<number>((most, value) => Math.max(most, value ?? 0), held);
  return { data: [times, values], top: most * 1.04 };
}

function mostHeld(spans: readonly Span[]): number {
  const changes = spans.flatMap((span) => [
    { at_s: span.from_s, by: span.gpus },
    ...(span.to_s === null ? [] : [{ at_s: span.to_s, by: -span.gpus }]),
  ]);
  changes.sort((a, b) => a.at_s - b.at_s || a.by - b.by);
  let height = 0;
  let most = 0;
  for (const { by } of changes) most = Math.max(most, (height += by));
  return most;
}

function steps(plot: uPlot, index: number): uPlot.Series.Paths {
  const path = new Path2D();
  const [times, values] = [plot.data[0], plot.data[index] ?? []];
  let before: number | null = null;
  times.forEach((at_s, i) => {
    const value = values[i];
    if (value == null) return;
    const [x, y] = [plot.valToPos(at_s, "x", true), plot.valToPos(value, "y", true)];
    if (before === null) path.moveTo(x, y);
    else path.lineTo(x, before);
    path.lineTo(x, y);
    before = y;
  });
  return { stroke: path, fill: undefined, clip: undefined };
}

function drawBands(plot: uPlot, timeline: Timeline, ink: Ink, isOneJob: boolean): Band[] {
  const { ctx, bbox } = plot;
  const { min, max } = plot.scales["x"] ?? {};
  if (min == null || max == null) return [];
  const grain_s = (max - min) / columnsFor(timeline, bbox.width / devicePixelRatio);
  const from_s = Math.max(min, timeline.since_s);
  const until_s = Math.min(max, timeline.until_s);
  const bands = stack(timeline.spans, from_s, until_s, grain_s);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const boxes = bands.map((band) => boxOf(plot, band));
  const edges = new Path2D();
  bands.forEach((band, i) => {
    const [left, upper, width, height] = boxes[i] ?? [0, 0, 0, 0];
    if (height < 1) return; // less than a pixel
    ctx.fillStyle = fillOf(band.job, ctx);
    ctx.fillRect(left, upper, width, height);
    if (height > 4 * devicePixelRatio) {
      edges.moveTo(left, upper);
      edges.lineTo(left + width, upper);
    }
  });
  ctx.strokeStyle = ink.surface;
  ctx.lineWidth = devicePixelRatio;
  ctx.stroke(edges);
  if (isOneJob) drawPauses(plot, timeline.spans, ink);
  else drawNames(ctx, bands, boxes);
  ctx.restore();
  return bands;
}

/** As many columns as there are pixels; fewer where many jobs would take long to draw. */
function columnsFor({ spans }: Timeline, width: number): number {
  const jobs = new Set(spans.map((span) => span.job)).size;
  return Math.max(50, Math.min(width, BANDS_MAX / Math.max(1, jobs)));
}

function boxOf(plot: uPlot, band: Band): [number, number, number, number] {
  const left = Math.round(plot.valToPos(band.from_s, "x", true));
  const right = Math.round(plot.valToPos(band.to_s, "x", true));
  const upper = Math.round(plot.valToPos(band.high, "y", true));
  const lower = Math.round(plot.valToPos(band.low, "y", true));
  return [left, upper, Math.max(1, right - left), lower - upper];
}

/** Write each job's name once, where its band has the most room. */
function drawNames(
  ctx: CanvasRenderingContext2D,
  bands: readonly Band[],
  boxes: readonly [number, number, number, number][],
): void {
  const roomiest = new Map<number, number>();
  bands.forEach((band, i) => {
    const [, , width, height] = boxes[i] ?? [0, 0, 0, 0];
    const best = boxes[roomiest.get(band.job) ?? -1];
    if (height < 13 * devicePixelRatio) return;
    if (best === undefined || width > best[2]) roomiest.set(band.job, i);
  });
  ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  const margin = 5 * devicePixelRatio;
  for (const [job, i] of roomiest) {
    const [left, upper, width, height] = boxes[i] ?? [0, 0, 0, 0];
    const name = fitted(ctx, bands[i]?.name ?? "", width - 2 * margin);
    if (name === "") continue;
    const colour = colourOf(job);
    const text = ctx.measureText(name).width;
    ctx.fillStyle = colour; // a plain ground below the letters, where the band has a pattern
    ctx.fillRect(left + margin / 2, upper + height / 2 - 7 * devicePixelRatio, text + margin, 14 * devicePixelRatio);
    ctx.fillStyle = textOn(colour);
    ctx.fillText(name, left + margin, upper + height / 2);
  }
}

function fitted(ctx: CanvasRenderingContext2D, name: string, room: number): string {
  if (ctx.measureText(name).width <= room) return name;
  for (let length = Math.min(name.length - 1, 40); length >= 4; length--) {
    const cut = `${name.slice(0, length)}…`;
    if (ctx.measureText(cut).width <= room) return cut;
  }
  return "";
}

/** Mark each resize of a job that paused it, with how long, where there is room. */
function drawPauses(plot: uPlot, spans: readonly Span[], ink: Ink): void {
  const { ctx, bbox } = plot;
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  ctx.strokeStyle = ctx.fillStyle = ink.strong;
  ctx.lineWidth = devicePixelRatio;
  const begins = spans.filter((span) => span.paused_s);
  begins.forEach(({ from_s, paused_s }, i) => {
    const xOf = (at_s: number) => Math.round(plot.valToPos(at_s, "x", true)) + 0.5;
    const x = xOf(from_s);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + 14 * devicePixelRatio);
    ctx.stroke();
    const text = shortTime(paused_s);
    const next = begins[i + 1];
    const right = next === undefined ? bbox.left + bbox.width : xOf(next.from_s);
    const left = x + 3 * devicePixelRatio;
    if (left + ctx.measureText(text).width < right) ctx.fillText(text, left, bbox.top + 2);
  });
}

function hoverAt(plot: uPlot, shown: { timeline: Timeline; bands: Band[] }): Hover | undefined {
  const { left = -1, top = -1 } = plot.cursor;
  if (left < 0 || top < 0) return undefined;
  const at_s = plot.posToVal(left, "x");
  const band = bandAt(shown.bands, at_s, plot.posToVal(top, "y"));
  const span = shown.timeline.spans.find(
    (each) =>
      each.job === band?.job && each.from_s <= at_s && at_s <= (each.to_s ?? Number.MAX_VALUE),
  );
  if (span === undefined) return undefined;
  const origin = plot.over;
  const isRight = left > origin.clientWidth - 220;
  return { x: origin.offsetLeft + left + (isRight ? -210 : 14), y: origin.offsetTop + top + 14, span };
}
