// What if: the recorded jobs under another policy, or with other numbers of GPUs.

import { useEffect, useId, useState, type FormEvent } from "react";
import { Card, Meter, Trouble } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import type { Shapes } from "../server/api";
import { sleep, useAnswer, usePoolClock, useSession } from "../server/live";
import { counted, duration, momentRange, percent, unitOf } from "../words";

type Result = Shapes["WhatIfResultView"];
type Replay = Shapes["WhatIfView"];

const LOOK_MS = 700;
const KEY = "coddl.whatif"; // of what this tab has asked last

/** What is asked, as it is typed. */
interface Asked {
  policies: string;
  gpus: string;
  since: string; // seconds before now; empty: all that is recorded
}

/** A question, and the replay that the server has started for it. */
interface Kept {
  id: string;
  asked: Asked;
}

const AT_FIRST: Asked = { policies: "afs-l srtf tiresias-l", gpus: "", since: "" };

function kept(): Kept {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Partial<Kept> | null;
    return { id: found?.id ?? "", asked: { ...AT_FIRST, ...found?.asked } };
  } catch {
    return { id: "", asked: AT_FIRST };
  }
}

const keep = (what: Kept) => sessionStorage.setItem(KEY, JSON.stringify(what));

const SINCE = [
  ["", "all that is recorded"],
  ["3600", "the last hour"],
  ["86400", "the last day"],
  ["604800", "the last 7 days"],
  ["2592000", "the last 30 days"],
] as const;

export function WhatIfPage() {
  const { server, live } = useSession();
  const [last, setLast] = useState(kept);
  const { id } = last;
  const [replay, setReplay] = useState<Replay>();
  const [trouble, setTrouble] = useState<Error>();

  useEffect(() => {
    if (id === "") return;
    const forget = () =>
      setLast((before) => {
        const left = { ...before, id: "" };
        keep(left);
        return left;
      });
    const stopped = new AbortController();
    const { signal } = stopped;
    const look = async () => {
      while (!signal.aborted) {
        try {
          const found = await server.get("/whatif/{id}", { id }, signal);
          setReplay(found);
          if (found.state !== "running") return;
        } catch (error) {
          if (signal.aborted) return;
          live.failed(error);
          if ("because" in (error as object)) {
            forget(); // the server knows nothing of it any more
            return;
          }
        }
        await sleep(LOOK_MS, signal);
      }
    };
    void look();
    return () => stopped.abort();
  }, [server, live, id]);

  const start = async (asked: Asked) => {
    setTrouble(undefined);
    const { policies, gpus, since } = asked;
    const request: Shapes["WhatIfRequest"] = {
      policies: policies.split(/\s+/).filter(Boolean),
      gpus: gpus.split(/[\s,]+/).filter(Boolean).map(Number),
      since_s: since === "" ? null : Math.floor(live.clock.now_s()) - Number(since),
    };
    try {
      const started = await server.change<Shapes["WhatIfStartedView"]>("POST", "/whatif", request);
      keep({ id: started.id, asked });
      setReplay(undefined);
      setLast({ id: started.id, asked });
    } catch (error) {
      live.failed(error);
      setTrouble(error as Error);
    }
  };

  const isRunning = id !== "" && (replay === undefined || replay.state === "running");
  return (
    <>
      <h1>What if</h1>
      <p className="lead">
        Replays the jobs that this pool has recorded under other policies, or with other numbers of
        GPUs. The pool itself is not changed.
      </p>
      <Question first={last.asked} isRunning={isRunning} onStart={(asked) => void start(asked)} />
      <Trouble error={trouble} />
      {isRunning && <Running part={replay?.progress ?? null} />}
      {replay?.state === "failed" && replay.trouble && (
        <div className="trouble" role="alert">
          <strong>{replay.trouble.what}</strong>
          <p>because {replay.trouble.because}</p>
          <p>try {replay.trouble.try}</p>
        </div>
      )}
      {replay?.state === "done" && replay.result && <Outcome result={replay.result} />}
    </>
  );
}

function Running({ part }: { part: number | null }) {
  return (
    <Card title="Replaying" label="Progress">
      <p role="status">
        {part === null ? "started" : percent(part)} <Meter part={part ?? 0} label="progress" />
      </p>
    </Card>
  );
}

function Question(props: {
  first: Asked; // what the form is filled with
  isRunning: boolean;
  onStart: (asked: Asked) => void;
}) {
  const [policies, setPolicies] = useState(props.first.policies);
  const [gpus, setGpus] = useState(props.first.gpus);
  const [since, setSince] = useState(props.first.since);
  const id = useId();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    props.onStart({ policies, gpus, since });
  };
  return (
    <Card title="Question" label="Question">
      <form className="fields question" onSubmit={submit}>
        <label htmlFor={`${id}p`}>Policies</label>
        <input id={`${id}p`} required value={policies} onChange={(event) => setPolicies(event.target.value)} spellCheck={false} aria-describedby={`${id}ph`} />
        <small id={`${id}ph`}>names as <code>coddl policies</code> lists them, with spaces between</small>
        <label htmlFor={`${id}g`}>GPUs</label>
        <input id={`${id}g`} value={gpus} onChange={(event) => setGpus(event.target.value)} pattern="[0-9 ,]*" title="numbers with spaces between" inputMode="numeric" aria-describedby={`${id}gh`} />
        <small id={`${id}gh`}>numbers such as 16 32; empty: as many as the pool had</small>
        <label htmlFor={`${id}s`}>Time</label>
        <select id={`${id}s`} value={since} onChange={(event) => setSince(event.target.value)} aria-describedby={`${id}sh`}>
          {SINCE.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
        <small id={`${id}sh`}>jobs submitted before take part with their remaining steps</small>
        <button type="submit" className="primary" disabled={props.isRunning}>
          Replay
        </button>
      </form>
    </Card>
  );
}

interface Row {
  name: string;
  kind: "recorded" | "replayed" | "what if"; // as `coddl whatif` calls them
  run: Result["recorded"];
  ratio: number | null;
}

function rowsOf(result: Result): Row[] {
  const recorded: Row = { name: result.recorded.policy, kind: "recorded", run: result.recorded, ratio: 1 };
  return [
    recorded,
    ...result.runs.map<Row>((run) => ({
      name: run.policy,
      kind: run.is_replay ? "replayed" : "what if",
      run,
      ratio: run.mean_against_replay ?? run.mean_against_recorded,
    })),
  ];
}

const columnsOf = (unit: string): Column<Row>[] => [
  { name: "POLICY", cell: (row) => <code>{row.name}</code>, sort: (row) => row.name, className: "main" },
  { name: `${unit}s`.toUpperCase(), cell: (row) => row.run.gpus, sort: (row) => row.run.gpus, isNumber: true },
  { name: "RUN", cell: (row) => row.kind, sort: (row) => row.kind },
  ...(["mean", "median", "p95", "p99"] as const).map<Column<Row>>((name) => ({
    name: name === "mean" ? "MEAN JCT" : name.toUpperCase(),
    cell: (row) => duration(row.run.jct_s[name]),
    sort: (row) => row.run.jct_s[name] ?? Infinity,
    isNumber: true,
    width: name === "mean" ? undefined : "wide",
  })),
  {
    name: "AGAINST REPLAY",
    cell: (row) => (row.kind === "recorded" || row.ratio === null ? "" : `${row.ratio.toFixed(2)}x`),
    sort: (row) => row.ratio ?? Infinity,
    isNumber: true,
  },
  { name: "MAKESPAN", cell: (row) => duration(row.run.makespan_s), isNumber: true, width: "wide" },
  {
    name: "IN USE",
    cell: (row) => (row.run.utilisation === null ? "" : percent(row.run.utilisation)),
    sort: (row) => row.run.utilisation ?? -1,
    isNumber: true,
    width: "wide",
  },
  { name: "RESIZES", cell: (row) => row.run.resizes ?? "", isNumber: true, width: "wide" },
];

function Outcome({ result }: { result: Result }) {
  const nodes = useAnswer("/nodes", {}, { every_s: 60, wakes: () => false });
  const unit = unitOf(nodes.answer?.items ?? []);
  const rows = rowsOf(result);
  const most = Math.max(...rows.map((row) => row.run.jct_s.mean ?? 0), 1e-9);
  const within = result.replay.within_5_percent;
  const now_s = usePoolClock().now_s();
  const { since_s, until_s } = result;
  const from = since_s === null || until_s === null ? "" : `, ${momentRange(since_s, until_s, now_s)}`;
  return (
    <Card title="Answer" label="Answer">
      <p className="lead">{result.sentence}</p>
      <p className="quiet">
        {counted(result.jobs, "job")}
        {from}.
        {within !== null && ` ${percent(within)} of those that ended are replayed within 5%.`}
      </p>
      <ul className="bars" aria-label="Mean job completion time">
        {rows.map((row, i) => (
          <li key={i} className={row.kind.replace(" ", "-")}>
            <span>
              <code>{row.name}</code> {counted(row.run.gpus, unit)} <small>{row.kind}</small>
            </span>
            <i style={{ width: `${(100 * (row.run.jct_s.mean ?? 0)) / most}%` }} />
            <strong>{duration(row.run.jct_s.mean)}</strong>
          </li>
        ))}
      </ul>
      <p className="hint">Mean job completion time (JCT): from submission to end; shorter is better.</p>
      <Table caption="Runs" rows={rows} columns={columnsOf(unit)} keyOf={(row) => `${row.kind} ${row.name} ${row.run.gpus}`} empty="" />
      {result.left_out.map(({ count, why }) => (
        <p key={why} className="hint">
          {counted(count, "job")} left out: {why}
        </p>
      ))}
    </Card>
  );
}
