// A number of a job as a curve, by step or by time.

import { useMemo, useState } from "react";
import { Moment } from "../parts/basics";
import type { Shapes } from "../server/api";
import { inkOf, useTheme } from "../theme";
import { short, shortTime } from "../words";
import { axis, Plot, TIME_PADDING_PX, timeAxis, type Options } from "./plot";

type Series = Shapes["SeriesView"];
export type Against = "step" | "time";

const TITLES: Record<string, string> = { step_s: "step time", samples_per_s: "samples/s" };

export const titleOf = (series: Series) => TITLES[series.name] ?? series.name;

function written(series: Series, value: number | null | undefined): string {
  if (value == null) return "not finite";
  return series.name.endsWith("_s") && !series.name.endsWith("per_s")
    ? shortTime(value)
    : short(value);
}

export function Curve({ series, against }: { series: Series; against: Against }) {
  const { theme } = useTheme();
  const [at, setAt] = useState<number>();
  const data = useMemo(
    () => [against === "step" ? series.step : series.at_s, series.value] as [number[], number[]],
    [series, against],
  );
  const options = (): Options => {
    const ink = inkOf(theme);
    return {
      legend: { show: false },
      padding: [6, TIME_PADDING_PX, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: against === "time" } },
      axes: [
        against === "time" ? timeAxis(ink) : axis(ink, { size: 30, space: 60 }),
        axis(ink, { size: 52, space: 26, values: (_plot, all) => all.map((y) => written(series, y)) }),
      ],
      series: [
        {},
        { stroke: ink.line, width: 1.75, spanGaps: false, points: { show: series.step.length < 3 } },
      ],
      hooks: { setCursor: [(plot) => setAt(plot.cursor.idx ?? undefined)] },
    };
  };
  const shown = at !== undefined && at < series.value.length ? at : series.value.length - 1;
  const value = written(series, series.value[shown]);
  const step = (series.step[shown] ?? 0).toLocaleString("en");
  const title = titleOf(series);
  return (
    <figure className="curve">
      <figcaption>
        <span>{title}</span>
        <strong>{value}</strong>
        <small>{against === "step" ? `step ${step}` : <Moment at_s={series.at_s[shown]} />}</small>
      </figcaption>
      <Plot
        label={`${title}: ${written(series, series.value[0])} at first, ${written(series, series.value.at(-1))} last`}
        height={150}
        data={data}
        options={options}
        remake={`${theme} ${against}`}
      />
    </figure>
  );
}
