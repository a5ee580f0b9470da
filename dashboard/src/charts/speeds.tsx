// How fast a job is at each number of GPUs: measured sizes as full dots, others hollow with the
// range that they may be in.

import { useMemo } from "react";
import type uPlot from "uplot";
import type { SpeedView } from "../server/api";
import { inkOf, useTheme } from "../theme";
import { short } from "../words";
import { axis, Plot, type Ink, type Options } from "./plot";

const isMeasured = (speed: SpeedView) => speed.source === "measured";
/** Whether any step time is known. Before, only ratios are assumed: seconds would be made up. */
export const isAnyKnown = (speeds: readonly SpeedView[]) => speeds.some((speed) => speed.source !== "assumed");

interface Props {
  speeds: readonly SpeedView[];
  gpus: number; // that the job holds
  unit: string;
}

export function Speeds({ speeds, gpus, unit }: Props) {
  const { theme } = useTheme();
  const data = useMemo<uPlot.AlignedData>(
    () => [speeds.map((speed) => speed.gpus), speeds.map((speed) => 1 / speed.step_s)],
    [speeds],
  );
  const options = (): Options => {
    const ink = inkOf(theme);
    return {
      legend: { show: false },
      padding: [10, 12, 0, 0],
      cursor: { show: false },
      scales: {
        x: { time: false, range: (_plot, least, most) => [Math.min(0, least), most + 0.5] },
        y: { range: (_plot, _least, most) => [0, (most || 1) * 1.25] },
      },
      axes: [
        axis(ink, { incrs: [1, 2, 4, 8, 16, 32, 64, 128, 256], space: 30, label: `${unit}s`, labelSize: 18, labelFont: "11px system-ui", size: 30 }),
        axis(ink, { size: 52, values: (_plot, all) => all.map(short) }),
      ],
      series: [{}, { stroke: ink.grid, width: 2, points: { show: false } }],
      hooks: { draw: [(plot) => speeds.forEach((speed) => drawSpeed(plot, speed, ink, gpus))] },
    };
  };
  const measured = speeds.filter(isMeasured).map((speed) => speed.gpus);
  return (
    <Plot
      label={`steps per second by number of ${unit}s; measured at ${measured.join(", ") || "none"}`}
      height={210}
      data={data}
      options={options}
      remake={`${theme} ${gpus} ${unit} ${JSON.stringify(speeds)}`}
    />
  );
}

function drawSpeed(plot: uPlot, speed: SpeedView, ink: Ink, gpus: number): void {
  const { ctx } = plot;
  const x = plot.valToPos(speed.gpus, "x", true);
  const yOf = (step_s: number) => plot.valToPos(1 / step_s, "y", true);
  const scale = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = ink.line;
  ctx.lineWidth = 1.5 * scale;
  if (!isMeasured(speed) && speed.relative_sd) {
    const spread = Math.min(0.9, speed.relative_sd);
    ctx.beginPath();
    ctx.moveTo(x, yOf(speed.step_s * (1 + spread)));
    ctx.lineTo(x, Math.max(plot.bbox.top, yOf(speed.step_s * (1 - spread))));
    ctx.stroke();
  }
  ctx.beginPath();
  ctx.arc(x, yOf(speed.step_s), 4 * scale, 0, 7);
  if (!isMeasured(speed)) ctx.fillStyle = ink.surface;
  ctx.fill();
  ctx.stroke();
  if (speed.gpus === gpus) {
    ctx.beginPath();
    ctx.arc(x, yOf(speed.step_s), 8 * scale, 0, 7);
    ctx.stroke();
  }
  ctx.restore();
}
