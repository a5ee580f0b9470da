// The GPUs of each job over time as stacked bands: pure arithmetic, no drawing.

export interface Span {
  job: number;
  name: string;
  gpus: number;
  from_s: number;
  to_s: number | null;
}

/** A stretch of a job's band: from a GPU to a GPU, from a time to a time. */
export interface Band {
  job: number;
  name: string;
  low: number;
  high: number;
  from_s: number;
  to_s: number;
}

/**
 * Lay spans on each other, the lowest job number at the bottom.
 *
 * Times are rounded to `grain_s`, about a pixel: more can't be seen.
 */
export function stack(
  spans: readonly Span[],
  since_s: number,
  until_s: number,
  grain_s: number,
): Band[] {
  const columnOf = (at_s: number) => Math.round((at_s - since_s) / grain_s);
  const last = columnOf(until_s);
  const changes = new Map<number, { ends: Span[]; begins: Span[] }>();
  const at = (column: number) => {
    let change = changes.get(column);
    if (change === undefined) changes.set(column, (change = { ends: [], begins: [] }));
    return change;
  };
  for (const span of spans) {
    const begin = Math.max(0, columnOf(span.from_s));
    const end = Math.min(last, columnOf(span.to_s ?? until_s));
    if (end <= begin || span.gpus <= 0) continue;
    at(begin).begins.push(span);
    at(end).ends.push(span);
  }
  const bands: Band[] = [];
  const open = new Map<Span, Band>();
  let active: Span[] = [];
  for (const column of [...changes.keys()].sort((a, b) => a - b)) {
    const { ends, begins } = changes.get(column) ?? { ends: [], begins: [] };
    const gone = new Set(ends);
    active = active.filter((span) => !gone.has(span)).concat(begins);
    active.sort((a, b) => a.job - b.job);
    const now_s = Math.min(until_s, since_s + column * grain_s);
    for (const span of ends) close(open, span, now_s);
    let low = 0;
    for (const span of active) {
      const band = open.get(span);
      if (band !== undefined && band.low !== low) close(open, span, now_s);
      if (!open.has(span)) {
        const begun = { job: span.job, name: span.name, low, high: low + span.gpus };
        const added = { ...begun, from_s: now_s, to_s: until_s };
        open.set(span, added);
        bands.push(added);
      }
      low += span.gpus;
    }
  }
  return bands;
}

function close(open: Map<Span, Band>, span: Span, now_s: number): void {
  const band = open.get(span);
  if (band !== undefined) band.to_s = now_s;
  open.delete(span);
}

/** Find the band at a time and a GPU. */
export function bandAt(bands: readonly Band[], at_s: number, gpu: number): Band | undefined {
  return bands.find(
    (band) => band.from_s <= at_s && at_s < band.to_s && band.low <= gpu && gpu < band.high,
  );
}
