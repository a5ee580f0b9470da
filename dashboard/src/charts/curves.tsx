// A number of a job as a curve, by step or by time.

import { useMemo, useState } from "react";
import { Moment } from "../parts/basics";
import type { Shapes } from "../server/api";
import { inkOf, useTheme } from "../theme";
import { short, shortTime } from "../words";
import { asLogged } from "./logged";
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

interface Props {
  series: Series;
  against: Against;
}

export function Curve({ series: told, against }: Props) {
  const { theme } = useTheme();
  const [at, setAt] = useState<number>();
  const { series, isHeld } = useMemo(() => asLogged(told), [told]);
  const data = useMemo(() => {
    const xOf = (each: Series) => (against === "step" ? each.step : each.at_s);
    if (!isHeld) return [xOf(series), series.value] as [number[], number[]];
    // The axis goes on to the newest sample, where there is no point.
    return [[...xOf(series), xOf(told).at(-1)], [...series.value, null]] as [number[], number[]];
  }, [told, series, isHeld, against]);
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
        {
          stroke: ink.line,
          width: 1.75,
          ...(isHeld && { paths: () => null }), // it is not known between its points
          spanGaps: false,
          points: { show: isHeld || series.step.length < 3, size: 6, width: 1, fill: ink.line },
        },
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
        <small>
          {isHeld && "since "}
          {against === "step" ? `step ${step}` : <Moment at_s={series.at_s[shown]} />}
        </small>
      </figcaption>
      <Plot
        label={`${title}: ${written(series, series.value[0])} at first, ${written(series, series.value.at(-1))} last`}
        height={150}
        data={data}
        options={options}
        remake={`${theme} ${against} ${isHeld}`}
      />
    </figure>
  );
}
