// The pool's time. That of an emulated pool goes faster than the browser's clock.

import type { Shapes } from "./api";

export class PoolClock {
  private told: { now_s: number; scale: number; atMs: number } | undefined;

  /** Go by what the server tells of its clock. */
  set({ now_s, time_scale }: Shapes["PoolView"]): void {
    if (now_s > 0) this.told = { now_s, scale: time_scale, atMs: performance.now() };
  }

  /** The time in the pool in seconds since 1970; the browser's until the server has told its own. */
  now_s(): number {
    if (this.told === undefined) return Date.now() / 1_000;
    const { now_s, scale, atMs } = this.told;
    return now_s + (scale * (performance.now() - atMs)) / 1_000;
  }
}
