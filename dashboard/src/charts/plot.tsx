// uPlot as a component: made once, fed with data, as wide as its place.

import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { inkOf } from "../theme";

export type Ink = ReturnType<typeof inkOf>;
export type Options = Omit<uPlot.Options, "width" | "height">;

interface Props {
  label: string; // for screen readers
  height: number;
  data: uPlot.AlignedData;
  options: () => Options;
  remake: string; // a chart is made anew when this changes
  onMade?: (plot: uPlot) => void;
}

export function Plot({ label, height, data, options, remake, onMade }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const latest = useRef({ data, options, onMade });
  latest.current = { data, options, onMade };

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const made = new uPlot(
      { ...latest.current.options(), width: element.clientWidth || 300, height },
      latest.current.data,
      element,
    );
    plot.current = made;
    latest.current.onMade?.(made);
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0) made.setSize({ width: element.clientWidth, height });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [remake, height]);

  const first = useRef(true);
  useEffect(() => {
    if (!first.current) plot.current?.setData(data);
    first.current = false;
  }, [data]);

  return <div ref={place} className="plot" role="img" aria-label={label} />;
}

/** An axis in the colours of the theme. */
export function axis(ink: Ink, more: uPlot.Axis = {}): uPlot.Axis {
  return {
    stroke: ink.text,
    font: "11px system-ui, sans-serif",
    grid: { stroke: ink.grid, width: 1 },
    ticks: { stroke: ink.grid, width: 1, size: 4 },
    ...more,
  };
}

const two = (value: number) => String(value).padStart(2, "0");

export const TIME_PADDING_PX = 34; // right of an axis of time: half of its last label

/** The axis of time: hours and minutes, and the date where a day begins. */
export function timeAxis(ink: Ink): uPlot.Axis {
  return axis(ink, {
    size: 30,
    space: (_plot, _axis, from_s, until_s) => (until_s - from_s < 20 ? 100 : 70),
    values: (_plot, splits, _axis, _space, step_s) => splits.map((at_s) => tick(at_s, step_s)),
  });
}

/** The label of a time, as exact as the distance between two of them requires. */
function tick(at_s: number, step_s: number): string {
  const at = new Date(Math.round(at_s * 1_000));
  const isMidnight = at.getHours() + at.getMinutes() + at.getSeconds() + at.getMilliseconds() === 0;
  if (isMidnight || step_s >= 86_400) return `${at.getMonth() + 1}/${at.getDate()}`;
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (step_s >= 60) return minutes;
  const digits = step_s >= 1 ? 0 : Math.min(3, Math.ceil(-Math.log10(step_s) - 1e-9));
  const fraction = digits ? `.${String(at.getMilliseconds()).padStart(3, "0").slice(0, digits)}` : "";
  return `${minutes}:${two(at.getSeconds())}${fraction}`;
}
