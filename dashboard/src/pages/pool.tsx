// The pool in one page: which job holds which GPUs, over time and now, and why.

import { useMemo, useState } from "react";
import { Shares } from "../charts/shares";
import { Card, Choice, Meter, Trouble, useNow } from "../parts/basics";
import { DecisionItem } from "../parts/decision";
import { EndedJobs, RunningJobs, WaitingJobs } from "../parts/jobs";
import { useAnswer, useFetched, useSession } from "../server/live";
import type { JobView, NodeView, Server, Shapes } from "../server/api";
import { activeJobs } from "../server/jobs";
import { isWaiting, memory, percent, unitOf } from "../words";

type Timeline = Shapes["TimelineView"];

const RANGES = [
  ["900", "15 min"],
  ["3600", "1 h"],
  ["21600", "6 h"],
  ["86400", "24 h"],
  ["604800", "7 days"],
] as const;

export function PoolPage() {
  const pool = useAnswer("/pool");
  const nodes = useAnswer("/nodes");
  const jobs = useFetched("active jobs", activeJobs);
  const ended = useAnswer("/jobs", { active: false, limit: 200 }, { every_s: 30, wakes: isEnd });
  const active = useMemo(() => {
    const over = new Set(ended.answer?.items.map((job) => job.id)); // the two answers differ in age
    return jobs.answer?.filter((job) => !over.has(job.id)) ?? [];
  }, [jobs.answer, ended.answer]);
  const running = useMemo(() => active.filter((job) => !isWaiting(job)), [active]);
  const waiting = useMemo(() => active.filter(isWaiting), [active]);
  const unit = unitOf(nodes.answer?.items ?? []);
  const trouble = pool.trouble ?? nodes.trouble ?? jobs.trouble;
  if (pool.answer === undefined || jobs.answer === undefined) {
    return trouble ? <Trouble error={trouble} /> : <p className="empty">asking the server …</p>;
  }
  return (
    <>
      <h1 className="unseen">Pool</h1>
      <Headline pool={pool.answer} nodes={nodes.answer?.items ?? []} unit={unit} running={running} waiting={waiting.length} />
      <Trouble error={trouble} />
      <GpusOverTime unit={unit} />
      <div className="columns">
        <div>
          <Card title={`Running (${running.length})`} label="Running jobs">
            <RunningJobs jobs={running} unit={unit} />
          </Card>
          <Card title={`Waiting (${waiting.length})`} label="Waiting jobs">
            <WaitingJobs jobs={waiting} />
          </Card>
          <Card title="Ended" label="Ended jobs">
            <EndedJobs jobs={ended.answer?.items ?? []} />
          </Card>
        </div>
        <LastDecisions unit={unit} />
      </div>
    </>
  );
}

const NOT_YET = "The others are held for jobs that are starting, being resized or stopping; they are not in the numbers of the jobs below.";

const isEnd = (event: { kind: string }) => event.kind === "RunEnded" || event.kind === "JobCancelled";

function Headline(props: {
  pool: Shapes["PoolView"];
  nodes: readonly NodeView[];
  unit: string;
  running: readonly JobView[];
  waiting: number;
}) {
  const { pool, nodes, unit, running, waiting } = props;
  const slots = nodes.filter((node) => node.is_up).flatMap((node) => node.slots);
  const told = slots.flatMap((slot) => (slot.busy == null ? [] : [slot.busy]));
  const busy = told.length ? told.reduce((sum, part) => sum + part, 0) / told.length : null;
  const known = slots.filter((slot) => slot.memory_used_bytes != null && slot.memory_bytes > 0);
  const usedBytes = known.reduce((sum, slot) => sum + (slot.memory_used_bytes ?? 0), 0);
  const allBytes = known.reduce((sum, slot) => sum + slot.memory_bytes, 0);
  const held = pool.slots_total ? pool.slots_used / pool.slots_total : 0;
  const atWork = new Set(running.flatMap((job) => job.slots)).size;
  const idle = pool.slots_used - atWork;
  return (
    <div className="headline">
      <Figure
        name={`${unit}s held`}
        value={
          <>
            {pool.slots_used} of {pool.slots_total}
            {idle > 0 && <small title={NOT_YET}> ({atWork} at work)</small>}
          </>
        }
        part={held}
      />
      {busy !== null && <Figure name="Utilisation" value={percent(busy)} part={busy} />}
      {allBytes > 0 && (
        <Figure
          name="GPU memory"
          value={`${memory(usedBytes)} of ${memory(allBytes)}`}
          part={usedBytes / allBytes}
        />
      )}
      <Figure name="Jobs" value={`${running.length} running, ${waiting} waiting`} />
      <Figure name="Nodes" value={`${pool.nodes_up} of ${pool.nodes} up`} />
      <Figure name="Policy" value={<code>{pool.policy}</code>} />
    </div>
  );
}

function Figure(props: { name: string; value: React.ReactNode; part?: number }) {
  return (
    <div>
      <span>{props.name}</span>
      <strong>{props.value}</strong>
      {props.part !== undefined && (
        <Meter part={props.part} label={`${props.name}: ${percent(props.part)}`} />
      )}
    </div>
  );
}

function GpusOverTime({ unit }: { unit: string }) {
  const { live } = useSession();
  const [range, setRange] = useState<(typeof RANGES)[number][0]>("3600");
  const timeline = useFetched(
    `timeline ${range}`,
    (server: Server, signal) => {
      const since_s = Math.floor(live.clock.now_s()) - Number(range);
      return server.get("/timeline", { since_s }, signal).then(sinceItBegan);
    },
    { every_s: Math.max(5, Number(range) / 600), wakes: changesShares },
  );
  const choice = <Choice label="Range of time" value={range} options={RANGES} onChange={setRange} />;
  const spans = timeline.answer?.spans ?? [];
  return (
    <Card title={`${unit}s over time`} label={`${unit}s over time`} aside={choice} className="over-time">
      <Trouble error={timeline.trouble} />
      {timeline.answer && <Shares timeline={timeline.answer} height={300} unit={unit} />}
      <p className="hint">
        {spans.length === 0
          ? `No job held a ${unit} in this time. `
          : "Each colour is a job; the dashed line is what the pool has. "}
        {spans.length > 0 && (
          <>
            <span className="by-mouse">Click a band for its job, drag to zoom, double-click for all. </span>
            <span className="by-touch">Tap a band for its job. </span>
          </>
        )}
        {timeline.answer?.truncated && "There was more in this time; the newest is shown."}
      </p>
    </Card>
  );
}

/** Leave out the time before the pool had any GPU: a young pool fills the chart. */
function sinceItBegan(timeline: Timeline): Timeline {
  const begin = timeline.gpus.find((each) => each.gpus > 0);
  if (begin === undefined) return timeline;
  return { ...timeline, since_s: Math.max(timeline.since_s, begin.at_s) };
}

const SHARES = ["Decided", "Aimed", "RunChanged", "RunEnded", "SlotFreed", "NodeJoined", "NodeLost"];
const changesShares = (event: { kind: string }) => SHARES.includes(event.kind);

function LastDecisions({ unit }: { unit: string }) {
  const { answer, trouble } = useAnswer(
    "/decisions",
    { limit: 50 },
    { every_s: 30, wakes: (event) => event.kind.startsWith("Deci") },
  );
  const now_s = useNow(10);
  const items = (answer?.items ?? []).filter((each) => each.changes.length > 0 || each.trouble);
  const all = <a href="#/decisions">all</a>;
  return (
    <Card title="Last decisions" aside={all} className="decisions">
      <Trouble error={trouble} />
      {items.length === 0 && <p className="empty">none yet</p>}
      <ol>
        {items.slice(0, 12).map((decision) => (
          <DecisionItem key={decision.number} decision={decision} unit={unit} now_s={now_s} isBrief />
        ))}
      </ol>
    </Card>
  );
}
