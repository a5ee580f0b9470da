// Tables of jobs, with the columns of `coddl ls`.

import type { JobView } from "../server/api";
import {
  bounds,
  duration,
  etaOf,
  gpusOf,
  progressOf,
  reasonOf,
  short,
  turnOf,
} from "../words";
import { JobName, Meter, Moment, StateBadge, useNow } from "./basics";
import { Table, type Column } from "./table";

type JobColumn = Column<JobView>;

const wordsOf = (job: JobView) =>
  [job.id, job.name, job.user, job.state, job.nodes.join(" "), job.code, job.reason].join(" ");

const ID: JobColumn = { name: "ID", cell: (job) => job.id, sort: (job) => job.id, isNumber: true };
const NAME: JobColumn = {
  name: "NAME",
  cell: (job) => <JobName job={job.id} name={job.name} />,
  sort: (job) => job.name,
  className: "main",
};
const USER: JobColumn = { name: "USER", cell: (job) => job.user, sort: (job) => job.user, width: "widest" };
const PRIO: JobColumn = {
  name: "PRIO",
  cell: (job) => job.priority,
  sort: (job) => job.priority,
  isNumber: true,
  width: "widest",
};
const STATE: JobColumn = {
  name: "STATE",
  cell: (job) => <StateBadge state={job.state} />,
  sort: (job) => job.state,
};
const REASON: JobColumn = { name: "REASON", cell: reasonOf, className: "reason", isBelow: true };

const RUNNING: JobColumn[] = [
  ID,
  NAME,
  USER,
  PRIO,
  STATE,
  { name: "GPUS", cell: Held, sort: (job) => job.gpus, isNumber: true },
  { name: "NODES", cell: (job) => job.nodes.join(", "), sort: (job) => job.nodes.join(), width: "widest" },
  { name: "PROGRESS", cell: Progress, sort: (job) => job.progress ?? -1 },
  {
    name: "SAMPLES/S",
    cell: (job) => (job.samples_per_s ? short(job.samples_per_s) : ""),
    sort: (job) => job.samples_per_s,
    isNumber: true,
    width: "widest",
  },
  { name: "ETA", cell: etaOf, sort: (job) => job.eta_s ?? Infinity, isNumber: true, width: "wide" },
  REASON,
];

function Held(job: JobView) {
  const turn = turnOf(job);
  return (
    <>
      <strong>{job.gpus}</strong>
      <span className="quiet">/{bounds(job.gpus_min, job.gpus_max)}</span>
      {turn && <small className="quiet"> {turn}</small>}
    </>
  );
}

function Progress(job: JobView) {
  const text = progressOf(job);
  return (
    <span className="progress">
      {job.progress !== null && <Meter part={job.progress} label={`progress: ${text}`} />}
      {text}
    </span>
  );
}

export function RunningJobs({ jobs, unit }: { jobs: readonly JobView[]; unit: string }) {
  return (
    <Table
      caption="Running jobs"
      rows={jobs}
      columns={RUNNING}
      keyOf={(job) => job.id}
      words={wordsOf}
      filtered="name, user, state, node …"
      order={{ column: "ID", isFalling: false }}
      empty={`no job holds a ${unit}; submit one: coddl submit train.py`}
    />
  );
}

export function WaitingJobs({ jobs }: { jobs: readonly JobView[] }) {
  const now_s = useNow(5);
  const columns: JobColumn[] = [
    ID,
    NAME,
    USER,
    PRIO,
    STATE,
    { name: "GPUS", cell: gpusOf, sort: (job) => job.gpus_min, isNumber: true },
    {
      name: "AGE",
      cell: (job) => duration(now_s - job.submitted_s),
      sort: (job) => -job.submitted_s,
      isNumber: true,
    },
    REASON,
  ];
  return (
    <Table
      caption="Waiting jobs"
      rows={jobs}
      columns={columns}
      keyOf={(job) => job.id}
      words={wordsOf}
      filtered="name, user, state, node …"
      order={{ column: "ID", isFalling: false }}
      empty="no job waits"
    />
  );
}

const ENDED: JobColumn[] = [
  ID,
  NAME,
  USER,
  STATE,
  { name: "ENDED", cell: (job) => <Moment at_s={job.ended_s} />, sort: (job) => job.ended_s ?? 0, isNumber: true },
  { name: "RUNTIME", cell: (job) => duration(job.runtime_s), sort: (job) => job.runtime_s, isNumber: true, width: "wide" },
  { name: "WAITED", cell: (job) => duration(job.waited_s), sort: (job) => job.waited_s, isNumber: true, width: "wide" },
  { name: "RESIZES", cell: (job) => job.resizes, sort: (job) => job.resizes, isNumber: true, width: "wide" },
  REASON,
];

export function EndedJobs({ jobs }: { jobs: readonly JobView[] }) {
  return (
    <Table
      caption="Ended jobs"
      rows={jobs}
      columns={ENDED}
      keyOf={(job) => job.id}
      words={wordsOf}
      filtered="name, user, state, node …"
      order={{ column: "ENDED", isFalling: true }}
      pageSize={10}
      empty="no job has ended yet"
    />
  );
}
