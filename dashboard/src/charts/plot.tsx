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

/** The axis of time: hours and minutes, and the date where a day begins. */
export function timeAxis(ink: Ink): uPlot.Axis {
  return axis(ink, {
    size: 30,
    space: 70,
    values: (_plot, splits, _axis, _space, step_s) =>
      splits.map((at_s) => {
        const at = new Date(at_s * 1_000);
        const isMidnight = at.getHours() + at.getMinutes() + at.getSeconds() === 0;
        if (isMidnight || step_s >= 86_400) return `${at.getMonth() + 1}/${at.getDate()}`;
        const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
        return step_s < 60 ? `${minutes}:${two(at.getSeconds())}` : minutes;
      }),
  });
}
