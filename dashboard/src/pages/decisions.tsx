// What was decided, why, and what the policy saw.

import { useEffect, useState } from "react";
import { Card, JobName, Moment, Trouble, useNow } from "../parts/basics";
import { DecisionItem } from "../parts/decision";
import { Table, type Column } from "../parts/table";
import type { Shapes } from "../server/api";
import { useAnswer, useFetched, useSession } from "../server/live";
import { bounds, counted, duration, unitOf } from "../words";

type Decision = Shapes["DecisionView"];
type Seen = Shapes["SeenJobView"];

const PAGE = 50;

export function DecisionsPage({ number }: { number?: number }) {
  const nodes = useAnswer("/nodes", {}, { every_s: 60, wakes: () => false });
  const unit = unitOf(nodes.answer?.items ?? []);
  return (
    <>
      <h1>Decisions</h1>
      <p className="lead">
        Every decision with its cause, the newest first. Open one for what the policy saw: the pool
        and the jobs as its record holds them.
      </p>
      {number === undefined ? (
        <AllDecisions unit={unit} />
      ) : (
        <OneDecision key={number} number={number} unit={unit} />
      )}
    </>
  );
}

function AllDecisions({ unit }: { unit: string }) {
  const newest = useAnswer(
    "/decisions",
    { limit: PAGE },
    { every_s: 30, wakes: (event) => event.kind.startsWith("Deci") },
  );
  const { server, live } = useSession();
  const [older, setOlder] = useState<Decision[]>([]);
  const [next, setNext] = useState<number | null>();
  const [trouble, setTrouble] = useState<Error>();
  const [open, setOpen] = useState<number>();
  const [onlyChanges, setOnlyChanges] = useState(true);
  const now_s = useNow(10);

  const first = newest.answer?.items ?? [];
  const seen = new Set(first.map((decision) => decision.number));
  const all = [...first, ...older.filter((decision) => !seen.has(decision.number))];
  const shown = all.filter((each) => !onlyChanges || each.changes.length > 0 || each.trouble);
  const before = next === undefined ? newest.answer?.next : next;

  // What moves out of the newest page stays on the screen.
  useEffect(() => {
    const items = newest.answer?.items ?? [];
    setOlder((known) => {
      if (known.length === 0) return known;
      const numbers = new Set(known.map((decision) => decision.number));
      return [...items.filter((each) => !numbers.has(each.number)), ...known];
    });
  }, [newest.answer]);

  const more = async () => {
    try {
      const page = await server.get("/decisions", { limit: PAGE, before: before ?? undefined });
      setOlder((known) => [...(known.length ? known : first), ...page.items]);
      setNext(page.next);
      setTrouble(undefined);
    } catch (error) {
      live.failed(error);
      setTrouble(error as Error);
    }
  };

  const toggle = (
    <label className="check">
      <input type="checkbox" checked={onlyChanges} onChange={() => setOnlyChanges(!onlyChanges)} />
      only decisions that changed something
    </label>
  );
  return (
    <Card title="All decisions" aside={toggle} className="decisions">
      <Trouble error={newest.trouble ?? trouble} />
      {newest.answer && shown.length === 0 && <p className="empty">none yet</p>}
      <ol>
        {shown.map((decision) => (
          <DecisionItem key={decision.number} decision={decision} unit={unit} now_s={now_s}>
            <button
              type="button"
              className="plain"
              aria-expanded={open === decision.number}
              onClick={() => setOpen(open === decision.number ? undefined : decision.number)}
            >
              {open === decision.number ? "Hide what the policy saw" : "What the policy saw"}
            </button>
            {open === decision.number && <Saw number={decision.number} unit={unit} />}
          </DecisionItem>
        ))}
      </ol>
      {before != null && (
        <button type="button" onClick={() => void more()}>
          Older decisions
        </button>
      )}
    </Card>
  );
}

function OneDecision({ number, unit }: { number: number; unit: string }) {
  const { answer, trouble } = useDetail(number);
  const now_s = useNow(10);
  return (
    <Card title={`Decision ${number}`} aside={<a href="#/decisions">all</a>} className="decisions">
      <Trouble error={trouble} />
      {answer && (
        <ol>
          <DecisionItem decision={answer} unit={unit} now_s={now_s} />
        </ol>
      )}
      {answer && <Saw number={number} unit={unit} />}
    </Card>
  );
}

const useDetail = (number: number) =>
  useFetched(`decision ${number}`, (server, signal) => server.get("/decisions/{number}", { number }, signal), {
    every_s: 3_600,
    wakes: () => false,
  });

const SEEN: Column<Seen>[] = [
  { name: "ID", cell: (seen) => seen.job, sort: (seen) => seen.job, isNumber: true },
  { name: "NAME", cell: (seen) => <JobName job={seen.job} name={seen.name} />, sort: (seen) => seen.name, className: "main" },
  { name: "BOUNDS", cell: (seen) => bounds(seen.gpus_min, seen.gpus_max), isNumber: true },
  {
    name: "GPUS",
    cell: (seen) => (
      <span className={seen.gpus === seen.gpus_after ? "quiet" : "strong"}>
        {seen.gpus} → {seen.gpus_after}
      </span>
    ),
    sort: (seen) => seen.gpus_after,
    isNumber: true,
  },
  {
    name: "STEPS LEFT",
    cell: (seen) => seen.remaining_iterations?.toLocaleString("en") ?? "unknown",
    sort: (seen) => seen.remaining_iterations ?? Infinity,
    isNumber: true,
    width: "wide",
  },
  {
    name: "GPU TIME SO FAR",
    cell: (seen) => duration(seen.attained_gpu_s),
    sort: (seen) => seen.attained_gpu_s ?? 0,
    isNumber: true,
    width: "wide",
  },
  { name: "REASON", cell: (seen) => seen.reason, className: "reason", isBelow: true },
];

function Saw({ number, unit }: { number: number; unit: string }) {
  const { answer, trouble } = useDetail(number);
  if (answer === undefined) return trouble ? <Trouble error={trouble} /> : <p className="empty">asking …</p>;
  const { saw } = answer;
  if (saw === null) return <p className="empty">what the policy saw is not recorded</p>;
  return (
    <div className="saw">
      <p className="quiet">
        {answer.policy} at <Moment at_s={saw.now_s} />: {counted(saw.gpus_total, unit)} to share among{" "}
        {counted(saw.jobs.length, "job")}
      </p>
      <Table
        caption={`Jobs that decision ${number} saw`}
        rows={saw.jobs}
        columns={SEEN}
        keyOf={(seen) => seen.job}
        filtered="name, reason"
        words={(seen) => `${seen.job} ${seen.name} ${seen.reason}`}
        empty="no jobs"
      />
    </div>
  );
}
