// One job: why it has what it has, how it trains, what happened to it, and what it prints.

import { useState } from "react";
import { Curve, type Against } from "../charts/curves";
import { Shares } from "../charts/shares";
import { isAnyKnown, Speeds } from "../charts/speeds";
import { Card, Choice, Facts, Moment, StateBadge, Swatch, Trouble, useNow } from "../parts/basics";
import { JobActions } from "../parts/job_actions";
import { Log } from "../parts/log";
import { Table, type Column } from "../parts/table";
import type { JobView, Shapes, SpeedView } from "../server/api";
import { useAnswer, usePoolClock, useSession } from "../server/live";
import {
  bounds,
  counted,
  duration,
  etaOf,
  isOver,
  memory,
  moment,
  progressOf,
  reasonOf,
  short,
  shortTime,
  sourceOf,
  turnOf,
  unitOf,
} from "../words";

export function JobPage({ job }: { job: string }) {
  const { mayChange } = useSession();
  const number = Number(job);
  const concerns = (event: { job?: number | null; kind: string }) =>
    event.job === number || event.kind === "Decided";
  const explained = useAnswer("/jobs/{job}/explain", { job }, { every_s: 2, wakes: concerns });
  const timeline = useAnswer("/jobs/{job}/timeline", { job }, { every_s: 5, wakes: concerns });
  const metrics = useAnswer("/jobs/{job}/metrics", { job }, { every_s: 3, wakes: concerns });
  const nodes = useAnswer("/nodes", {}, { every_s: 60, wakes: () => false });
  const unit = unitOf(nodes.answer?.items ?? []);
  const told = explained.answer;
  if (told === undefined) {
    if (!explained.trouble) return <p className="empty">asking the server …</p>;
    return (
      <>
        <Trouble error={explained.trouble} />
        <a href="#/">All jobs</a>
      </>
    );
  }
  const view = told.job;
  return (
    <>
      <div className="job-head">
        <h1>
          <Swatch job={view.id} /> {view.name} <small>job {view.id}</small>
        </h1>
        <StateBadge state={view.state} />
        {mayChange && !isOver(view) && <JobActions job={view} unit={unit} onDone={explained.ask} />}
      </div>
      <p className="lead">{told.sentence || reasonOf(view)}</p>
      {told.parked_sentence && <p className="lead">{told.parked_sentence}</p>}
      <Trouble error={explained.trouble} />
      <JobTrouble view={view} />
      <JobFacts view={view} unit={unit} position={told.position} />
      <Card title={`${unit}s of this job over time`} label="Share over time">
        <Trouble error={timeline.trouble} />
        {timeline.answer && timeline.answer.spans.length > 0 ? (
          <>
            <Shares timeline={timeline.answer} height={180} unit={unit} isOneJob />
            <Resizes timeline={timeline.answer} unit={unit} />
          </>
        ) : (
          <p className="empty">it has held no {unit} yet</p>
        )}
      </Card>
      <Metrics series={metrics.answer?.series ?? []} trouble={metrics.trouble} />
      {told.speeds.length > 0 && (view.tier === "elastic" || isAnyKnown(told.speeds)) && (
        <SpeedCard speeds={told.speeds} gpus={view.gpus} unit={unit} />
      )}
      <Story story={told.story} />
      <Log key={view.id} job={view.id} />
    </>
  );
}

function JobTrouble({ view }: { view: JobView }) {
  const found = [view.trouble, view.unsaved].filter((each) => each != null);
  return found.map((trouble) => (
    <div className="trouble" key={trouble.what}>
      <strong>{trouble.what}</strong>
      <p>because {trouble.because}</p>
      <p>try {trouble.try}</p>
    </div>
  ));
}

function JobFacts({ view, unit, position }: { view: JobView; unit: string; position: number | null }) {
  const now_s = useNow();
  const steps = view.steps ? ` of ${view.steps.toLocaleString("en")}` : "";
  const done = view.progress === null ? "" : ` (${progressOf(view)})`;
  const age_s = (view.ended_s ?? now_s) - view.submitted_s;
  const logged = Object.entries(view.metrics).map(([name, value]) => `${name} ${short(value)}`);
  return (
    <Facts
      pairs={[
        [`${unit}s`, `${view.gpus} (bounds ${bounds(view.gpus_min, view.gpus_max)})`],
        ["nodes", view.nodes.join(", ")],
        ["position", position === null ? "" : `${position} among those that wait`],
        ["turns", turnOf(view)],
        ["memory", view.memory_limit ?? ""],
        ["step", `${view.step.toLocaleString("en")}${steps}${done}`],
        ["speed", view.samples_per_s ? `${short(view.samples_per_s)} samples/s` : ""],
        ["ETA", etaOf(view)],
        ["length", view.length?.sentence ?? ""],
        ["metrics", logged.join(", ")],
        ["user", view.user],
        ["priority", view.priority],
        ["tier", view.tier],
        ["submitted", moment(view.submitted_s, now_s)],
        ["started", moment(view.started_s, now_s)],
        ["ended", moment(view.ended_s, now_s)],
        ["age", duration(age_s)],
        ["time", `${duration(view.runtime_s)} running, ${duration(view.waited_s)} waiting`],
        ["resizes", view.resizes],
        ["last pause", view.resizes ? shortTime(view.last_pause_s) : ""],
        ["restarts", view.restarts],
        ["state", view.state_bytes ? memory(view.state_bytes) : ""],
        ["checkpoint", view.saved_step === null ? "" : `step ${view.saved_step.toLocaleString("en")}`],
        ["exit code", view.exit_code],
        ["command", <code key="command">{view.command.join(" ")}</code>],
      ]}
    />
  );
}

type Span = Shapes["SpanView"];

function Resizes({ timeline, unit }: { timeline: Shapes["TimelineView"]; unit: string }) {
  const { spans, until_s } = timeline;
  const columns: Column<Span>[] = [
    { name: "FROM", cell: (span) => <Moment at_s={span.from_s} />, sort: (span) => span.from_s, isNumber: true },
    { name: `${unit}s`, cell: (span) => span.gpus, sort: (span) => span.gpus, isNumber: true },
    {
      name: "FOR",
      cell: (span) => duration((span.to_s ?? until_s) - span.from_s),
      isNumber: true,
    },
    {
      name: "PAUSE BEFORE",
      cell: (span) => (span.paused_s === null ? "" : shortTime(span.paused_s)),
      sort: (span) => span.paused_s ?? -1,
      isNumber: true,
    },
  ];
  return (
    <details>
      <summary>
        {counted(spans.length, "share")} as a table: when, how many {unit}s, and each pause
      </summary>
      <Table
        caption="Shares of the job"
        rows={spans}
        columns={columns}
        keyOf={(span) => span.from_s}
        order={{ column: "FROM", isFalling: true }}
        pageSize={20}
        empty="none"
      />
    </details>
  );
}

const AGAINST = [
  ["step", "by step"],
  ["time", "by time"],
] as const;

function Metrics({ series, trouble }: { series: readonly Shapes["SeriesView"][]; trouble: Error | undefined }) {
  const [against, setAgainst] = useState<Against>("step");
  const known = series.filter((each) => each.value.length > 0);
  known.sort((a, b) => Number(b.name.includes("loss")) - Number(a.name.includes("loss")));
  const choice = <Choice label="Horizontal axis" value={against} options={AGAINST} onChange={setAgainst} />;
  return (
    <Card title="Metrics" aside={choice}>
      <Trouble error={trouble} />
      {known.length === 0 ? (
        <p className="empty">nothing yet; coddl.log(loss=…) in the script is shown here</p>
      ) : (
        <div className="curves">
          {known.map((each) => (
            <Curve key={each.name} series={each} against={against} />
          ))}
        </div>
      )}
    </Card>
  );
}

function SpeedCard({ speeds, gpus, unit }: { speeds: readonly SpeedView[]; gpus: number; unit: string }) {
  const isKnown = isAnyKnown(speeds);
  const columns: Column<SpeedView>[] = [
    { name: `${unit}s`, cell: (speed) => speed.gpus, isNumber: true },
    { name: "STEP TIME", cell: (speed) => (isKnown ? shortTime(speed.step_s) : "?"), isNumber: true },
    { name: "SPEEDUP", cell: (speed) => `${speed.speedup.toFixed(2)}x`, isNumber: true },
    { name: "SOURCE", cell: sourceOf, className: "reason" },
  ];
  return (
    <Card title={`Speed by number of ${unit}s`} label="Speed">
      <div className="halves">
        {isKnown ? (
          <div>
            <Speeds speeds={speeds} gpus={gpus} unit={unit} />
            <p className="hint">
              Steps per second. Full dots are measured. Hollow dots are not; a line through one is
              the standard deviation of its estimate. The ring is the size that the job has now.
            </p>
          </div>
        ) : (
          <p className="empty">no step has been measured; the speedup is an assumption</p>
        )}
        <Table caption="Speeds" rows={speeds} columns={columns} keyOf={(speed) => speed.gpus} pageSize={16} empty="" />
      </div>
    </Card>
  );
}

const STORY = 15; // entries that are shown at first

function Story({ story }: { story: readonly Shapes["StoryView"][] }) {
  const now_s = usePoolClock().now_s();
  const [isWhole, setWhole] = useState(false);
  const newest = [...story].sort((a, b) => b.number - a.number);
  const shown = isWhole ? newest : newest.slice(0, STORY);
  return (
    <Card title="Story" className="story">
      <ol reversed>
        {shown.map((entry) => (
          <li key={entry.number}>
            <time dateTime={new Date(entry.at_s * 1_000).toISOString()}>{moment(entry.at_s, now_s)}</time>
            <span>{entry.text}</span>
          </li>
        ))}
      </ol>
      {newest.length > STORY && (
        <button type="button" className="plain" onClick={() => setWhole(!isWhole)}>
          {isWhole ? "Only the newest" : `All ${newest.length} entries`}
        </button>
      )}
    </Card>
  );
}
