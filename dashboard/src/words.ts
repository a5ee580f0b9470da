// Numbers and jobs in words, as the command line writes them.

import type { JobView, NodeView, SpeedView } from "./server/api";

/** A span of time in at most two units. */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3_600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 48 * 3_600) return `${Math.floor(whole / 3_600)}h${two(Math.floor(whole / 60) % 60)}m`;
  return `${Math.floor(whole / 86_400)}d${two(Math.floor(whole / 3_600) % 24)}h`;
}

/** A short span, such as a pause or a step. */
export function shortTime(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "";
  if (seconds >= 60) return duration(seconds);
  if (seconds >= 1) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${(seconds * 1_000).toPrecision(seconds < 0.001 ? 2 : 3)} ms`;
}

const two = (value: number) => String(value).padStart(2, "0");

const timeOf = (at: Date) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
const dayOf = (at: Date) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;

/** A time of day; with the date where it is not today's, by the pool's clock. */
export function moment(at_s: number | null | undefined, now_s: number): string {
  if (at_s == null) return "";
  const at = new Date(at_s * 1_000);
  const isToday = dayOf(at) === dayOf(new Date(now_s * 1_000));
  return isToday ? timeOf(at) : `${dayOf(at)} ${timeOf(at)}`;
}

/** From a moment to a later one; with both dates unless both are today's. */
export function momentRange(from_s: number, until_s: number, now_s: number): string {
  const [from, until] = [new Date(from_s * 1_000), new Date(until_s * 1_000)];
  const today = dayOf(new Date(now_s * 1_000));
  if (dayOf(from) === today && dayOf(until) === today) return `${timeOf(from)} to ${timeOf(until)}`;
  return `${dayOf(from)} ${timeOf(from)} to ${dayOf(until)} ${timeOf(until)}`;
}

export function memory(bytes: number): string {
  let size = bytes / (1 << 20);
  let unit = "MiB";
  for (const larger of ["GiB", "TiB"]) {
    if (size < 1_024) break;
    [size, unit] = [size / 1_024, larger];
  }
  return `${size.toFixed(unit === "MiB" || size >= 100 ? 0 : 1)} ${unit}`;
}

export const percent = (part: number) => `${Math.round(part * 100)}%`;

/** A number with four digits that count. */
export function short(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) {
    return Number(value.toPrecision(3)).toExponential();
  }
  if (size >= 1_000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

export const counted = (count: number, noun: string) =>
  `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

export const bounds = (least: number, most: number) =>
  least === most ? String(least) : `${least}..${most}`;

/** What a job holds and may hold: 3/1..8. */
export const gpusOf = (job: JobView) => `${job.gpus}/${bounds(job.gpus_min, job.gpus_max)}`;

export function progressOf(job: JobView): string {
  if (job.progress !== null) return percent(job.progress);
  return job.step ? `step ${job.step.toLocaleString("en")}` : "";
}

/** The time to a job's end; with ~ where its length is predicted from its loss. */
export function etaOf(job: JobView): string {
  if (job.eta_s === null) return "";
  return (job.length?.source === "predicted" ? "~" : "") + duration(job.eta_s);
}

/** Why a job waits, with the code that programs know, or why it has what it has. */
export function reasonOf(job: JobView): string {
  const still = job.still_s ? `no step for ${duration(job.still_s)}; ` : "";
  const parked = job.parked ? `; parked on ${job.parked.node}` : "";
  const reason = `${job.code ? `${job.code}: ` : still}${job.reason}${parked}`;
  return reason || (job.trouble?.what ?? "");
}

/** The part of a job's GPU time that it had, where it takes turns with others. */
export function turnOf(job: JobView): string {
  if (!job.turns) return "";
  const now = job.turns.has_turn === null ? "" : job.turns.has_turn ? "its turn" : "waits for turn";
  const share = job.turns.share === null ? "" : percent(job.turns.share);
  return [now, share].filter(Boolean).join(" ");
}

/** What people call a slot: a GPU, unless no node has one. */
export function unitOf(nodes: readonly NodeView[]): string {
  const slots = nodes.flatMap((node) => node.slots);
  return slots.length > 0 && slots.every((slot) => slot.kind === "cpu") ? "CPU slot" : "GPU";
}

export const SOURCES: Record<string, string> = {
  measured: "measured",
  remembered: "measured by an earlier job",
  interpolated: "between measured sizes",
  estimated: "from its profile",
  submitted: "given by the user",
  assumed: "not measured yet",
};

/** How a speed is known, and how far off it may be. */
export function sourceOf(speed: SpeedView): string {
  const source = SOURCES[speed.source] ?? speed.source;
  const steps = speed.source === "measured" ? ` over ${counted(speed.iterations, "step")}` : "";
  const spread = speed.relative_sd ? `, ±${percent(speed.relative_sd)}` : "";
  return `${source}${steps}${spread}${speed.is_trial ? "; to be tried" : ""}`;
}

/** A change of a share: 1 → 4 GPUs. */
export const changed = (before: number, after: number, unit = "GPU") =>
  `${before} → ${counted(after, unit)}`;

const ENDED = ["SUCCEEDED", "FAILED", "CANCELLED"];
export const isOver = (job: JobView) => ENDED.includes(job.state);
/** Whether a job has no GPUs and will get some again. */
export const isWaiting = (job: JobView) => !isOver(job) && job.gpus === 0;
