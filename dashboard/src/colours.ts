// Colours of jobs: stable by number, distinct for colour-blind people (after Okabe and
// Ito), and with a pattern from the ninth on. Where there is room, the job's name is there, too.

const HUES = ["#2a76b5", "#e3a032", "#23997a", "#cf82b0", "#6cb7e6", "#d0652c", "#e2d562", "#8b7dd3"];
const WHITE_TEXT = new Set(["#2a76b5", "#8b7dd3", "#d0652c"]);
const PATTERNS = ["plain", "rising", "falling", "dotted"] as const;
export type Pattern = (typeof PATTERNS)[number];

export const colourOf = (job: number): string => HUES[job % HUES.length] ?? "#888888";
export const patternOf = (job: number): Pattern =>
  PATTERNS[Math.floor(job / HUES.length) % PATTERNS.length] ?? "plain";
export const textOn = (colour: string): string => (WHITE_TEXT.has(colour) ? "#ffffff" : "#10151c");

const made = new Map<number, CanvasPattern | string>();

/** What a canvas is filled with for a job. */
export function fillOf(job: number, context: CanvasRenderingContext2D): CanvasPattern | string {
  const key = job % (HUES.length * PATTERNS.length);
  const known = made.get(key);
  if (known !== undefined) return known;
  const tile = tileOf(colourOf(job), patternOf(job), devicePixelRatio);
  const fill = tile === null ? colourOf(job) : (context.createPattern(tile, "repeat") ?? colourOf(job));
  made.set(key, fill);
  return fill;
}

function tileOf(colour: string, pattern: Pattern, scale: number): HTMLCanvasElement | null {
  if (pattern === "plain") return null;
  const size = Math.round(8 * scale);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const context = tile.getContext("2d");
  if (context === null) return null;
  context.fillStyle = colour;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = context.fillStyle = "rgb(255 255 255 / 32%)";
  context.lineWidth = 1.5 * scale;
  context.beginPath();
  for (const shift of [-size, 0, size]) {
    if (pattern === "rising") line(context, shift, size, shift + size, 0);
    if (pattern === "falling") line(context, shift, 0, shift + size, size);
  }
  context.stroke();
  if (pattern === "dotted") context.arc(size / 2, size / 2, 1.5 * scale, 0, 7);
  if (pattern === "dotted") context.fill();
  return tile;
}

function line(context: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number) {
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
}
