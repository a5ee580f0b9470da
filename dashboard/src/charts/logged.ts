// Where a script has logged a number, as far as the server's samples tell: no drawing.

import type { Shapes } from "../server/api";

type Series = Shapes["SeriesView"];

const MEASURED = ["step_s", "samples_per_s"]; // by the server, whatever the script logs

/**
 * Keep the points at which a number that is logged now and then has changed.
 *
 * A sample has the last value of each number, so that one logged once per epoch is repeated until
 * the next epoch: a line through all samples would be a staircase that ends at the present step.
 */
export function asLogged(series: Series): { series: Series; isHeld: boolean } {
  const { step, at_s, value } = series;
  const isNew = value.map((each, i) => i === 0 || each !== value[i - 1]);
  const changes = isNew.flatMap((is, i) => (is ? [i] : []));
  const held = changes.filter((i) => isNew[i + 1] === false).length;
  if (MEASURED.includes(series.name) || 2 * held <= changes.length) return { series, isHeld: false };
  const at = <T>(all: readonly T[]) => all.filter((_, i) => isNew[i]);
  return { series: { ...series, step: at(step), at_s: at(at_s), value: at(value) }, isHeld: true };
}
