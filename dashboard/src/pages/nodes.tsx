// The pool's nodes: their slots, which job holds each, and how busy it is.

import { useMemo } from "react";
import { colourOf, patternOf, textOn } from "../colours";
import { Action, Card, Meter, StateBadge, Trouble } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { jobLink } from "../route";
import type { JobView, NodeView, Server, Shapes } from "../server/api";
import { activeJobs } from "../server/jobs";
import { useAnswer, useFetched, useSession } from "../server/live";
import { bounds, counted, duration, memory, percent } from "../words";

type Slot = NodeView["slots"][number];

export function NodesPage() {
  const { server, mayChange } = useSession();
  const nodes = useAnswer("/nodes", {}, { every_s: 3 });
  const jobs = useFetched("active jobs", activeJobs);
  const names = useMemo(() => new Map(jobs.answer?.map((job) => [job.id, job])), [jobs.answer]);
  const columns = useMemo(
    () => columnsOf(names, mayChange ? { server, ask: nodes.ask } : undefined),
    [names, mayChange, server, nodes.ask],
  );
  const { answer, trouble } = nodes;
  if (answer === undefined) {
    return trouble ? <Trouble error={trouble} /> : <p className="empty">asking the server …</p>;
  }
  return (
    <>
      <h1>Nodes</h1>
      <Trouble error={trouble} />
      {(answer.problems ?? []).map((problem) => (
        <p key={problem} className="trouble">
          {problem}
        </p>
      ))}
      {answer.engine && <Engine engine={answer.engine} />}
      <Card title={counted(answer.items.length, "node")} label="Nodes">
        <Table
          caption="Nodes"
          filtered="node, host, state, job"
          rows={answer.items}
          columns={columns}
          keyOf={(node) => node.name}
          words={(node) =>
            [node.name, node.host, node.state, ...node.jobs.map((job) => names.get(job)?.name ?? job)].join(" ")
          }
          order={{ column: "NAME", isFalling: false }}
          empty="no nodes; run coddl agent on a machine to add it"
        />
      </Card>
    </>
  );
}

function columnsOf(
  names: ReadonlyMap<number, JobView>,
  change: { server: Server; ask: () => void } | undefined,
): Column<NodeView>[] {
  const columns: Column<NodeView>[] = [
    {
      name: "NAME",
      cell: (node) => (
        <span title={`${node.host}, coddl ${node.coddl || "?"}, torch ${node.torch || "none"}`}>
          <strong>{node.name}</strong>
          {node.host !== node.name && <small className="quiet"> {node.host}</small>}
        </span>
      ),
      sort: (node) => node.name,
      className: "main",
    },
    { name: "STATE", cell: (node) => <Condition node={node} />, sort: (node) => node.state },
    {
      name: "USED",
      cell: (node) => `${node.used}/${node.slots.length}`,
      sort: (node) => node.used,
      isNumber: true,
      width: "wide", // the slots show it, too
    },
    { name: "SLOTS", cell: (node) => <Slots node={node} names={names} />, className: "slots" },
    { name: "UTILISATION", cell: Busy, sort: (node) => mean(node.slots) ?? -1, width: "wide" },
    { name: "GPU MEMORY", cell: MemoryUse, width: "wide" },
    {
      name: "LEASE",
      cell: (node) => duration(node.lease_left_s),
      sort: (node) => node.lease_left_s ?? -1,
      isNumber: true,
      width: "wide",
    },
  ];
  if (change) columns.push({ name: "ACTIONS", cell: (node) => <Drain node={node} {...change} /> });
  return columns;
}

function Condition({ node }: { node: NodeView }) {
  const { live } = useSession();
  return (
    <>
      <StateBadge state={node.state} />
      {node.leaves_at_s != null && (
        <small className="quiet"> to be empty in {duration(node.leaves_at_s - live.clock.now_s())}</small>
      )}
      {node.parked ? <small className="quiet"> {counted(node.parked, "job")} parked</small> : null}
    </>
  );
}

function Slots({ node, names }: { node: NodeView; names: ReadonlyMap<number, JobView> }) {
  return (
    <ul className="slot-list" aria-label={`slots of ${node.name}`}>
      {node.slots.map((slot) => (
        <SlotBox key={slot.slot} slot={slot} names={names} />
      ))}
    </ul>
  );
}

function SlotBox({ slot, names }: { slot: Slot; names: ReadonlyMap<number, JobView> }) {
  const all = slot.jobs?.length ? slot.jobs : slot.job === null ? [] : [slot.job];
  const holders = all.map((job) => `${names.get(job)?.name ?? "job"} (job ${job})`);
  const told = [
    `${slot.gpu ?? slot.kind} ${slot.index}`,
    slot.used_by_others ? `in use by ${slot.used_by_others}` : holders.join(", ") || "free",
    slot.busy == null ? "" : `${percent(slot.busy)} busy`,
    slot.memory_used_bytes == null ? "" : `${memory(slot.memory_used_bytes)} of ${memory(slot.memory_bytes)}`,
  ];
  const title = told.filter(Boolean).join(", ");
  if (slot.used_by_others) {
    return (
      <li className="slot others" title={title} aria-label={title}>
        ×
      </li>
    );
  }
  if (slot.job === null) {
    return <li className="slot free" title={title} aria-label={title} />;
  }
  const colour = colourOf(slot.job);
  return (
    <li title={title}>
      <a
        href={jobLink(slot.job)}
        className={`slot ${patternOf(slot.job)}`}
        style={{ backgroundColor: colour, color: textOn(colour) }}
        aria-label={title}
      >
        {slot.job}
        {all.length > 1 && <sup>+{all.length - 1}</sup>}
        {slot.busy != null && <i style={{ height: `${slot.busy * 100}%` }} />}
      </a>
    </li>
  );
}

function mean(slots: readonly Slot[]): number | null {
  const told = slots.flatMap((slot) => (slot.busy == null ? [] : [slot.busy]));
  return told.length ? told.reduce((sum, part) => sum + part, 0) / told.length : null;
}

function Busy(node: NodeView) {
  const busy = mean(node.slots);
  if (busy === null) return <span className="quiet">not reported</span>;
  return (
    <span className="progress">
      <Meter part={busy} label={`utilisation of ${node.name}: ${percent(busy)}`} />
      {percent(busy)}
    </span>
  );
}

function MemoryUse(node: NodeView) {
  const known = node.slots.filter((slot) => slot.memory_used_bytes != null && slot.memory_bytes > 0);
  const used = known.reduce((sum, slot) => sum + (slot.memory_used_bytes ?? 0), 0);
  const all = known.reduce((sum, slot) => sum + slot.memory_bytes, 0);
  if (all === 0) return <span className="quiet">not reported</span>;
  return (
    <span className="progress">
      <Meter part={used / all} label={`GPU memory of ${node.name}: ${percent(used / all)}`} />
      {memory(used)}
    </span>
  );
}

function Drain({ node, server, ask }: { node: NodeView; server: Server; ask: () => void }) {
  if (!node.is_up) return null;
  const path = `/nodes/${encodeURIComponent(node.name)}`;
  if (node.is_drained) {
    return <Action name="Undrain" what={node.name} act={() => server.change("POST", `${path}:undrain`)} onDone={ask} />;
  }
  return (
    <Action
      name="Drain"
      what={node.name}
      question={`Nothing new starts on ${node.name}, and its jobs are moved away.`}
      act={() => server.change("POST", `${path}:drain`)}
      onDone={ask}
    />
  );
}

function Engine({ engine }: { engine: Shapes["EngineView"] }) {
  const size = bounds(engine.nodes_min, engine.nodes_max);
  const told = [
    engine.starting.length ? `starting: ${engine.starting.join(", ")}` : "",
    engine.is_connected ? "" : "no report since the server was started",
    engine.trouble && `does not answer: ${engine.trouble}`,
    ...engine.notes,
  ].filter(Boolean);
  return (
    <Card title={`Engine ${engine.engine}`} label="Engine">
      <p>
        {size} {size === "1" ? "node" : "nodes"} of {engine.slots}; {counted(engine.wanted, "node")}{" "}
        wanted
        {engine.because && ` (${engine.because})`}
      </p>
      {told.map((note) => (
        <p key={note} className="quiet">
          {note}
        </p>
      ))}
    </Card>
  );
}
