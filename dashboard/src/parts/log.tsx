// What a job prints, live: only the lines in sight are in the page, however many there are.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { LogLine } from "../server/api";
import { sleep, usePoolClock, useSession } from "../server/live";
import { moment } from "../words";
import { Card, Trouble } from "./basics";
import { marked, plain } from "./log_text";

const KEPT = 20_000; // lines
const TAIL = 2_000; // that are asked for at first
const LINE_PX = 18;
const VIEW_PX = 360;
const FLUSH_MS = 200; // lines are shown together
const RETRY_MS = 2_000;

export function Log({ job }: { job: number }) {
  const { lines, trouble, isOver } = useLog(job);
  const [rank, setRank] = useState("");
  const [search, setSearch] = useState("");
  const ranks = useMemo(
    () => [...new Set(lines.map((line) => line.rank))].sort((a, b) => (a ?? -1) - (b ?? -1)),
    [lines],
  );
  const wanted = search.toLowerCase();
  const shown = useMemo(
    () =>
      lines.filter(
        (line) =>
          (rank === "" || String(line.rank) === rank) &&
          (wanted === "" || line.text.toLowerCase().includes(wanted)),
      ),
    [lines, rank, wanted],
  );
  const tools = (
    <div className="tools">
      <label>
        Rank{" "}
        <select value={rank} onChange={(event) => setRank(event.target.value)}>
          <option value="">all</option>
          {ranks.map((each) => (
            <option key={String(each)} value={String(each)}>
              {each ?? "– (no rank yet)"}
            </option>
          ))}
        </select>
      </label>
      <input
        type="search"
        aria-label="Search the log"
        placeholder="Search"
        value={search}
        onChange={(event) => setSearch(event.target.value)}
      />
    </div>
  );
  return (
    <Card title="Log" aside={tools} className="log">
      <Trouble error={trouble} />
      {lines.length === 0 ? (
        <p className="empty">{isOver ? "the job has printed nothing" : "nothing is printed yet"}</p>
      ) : (
        <Lines lines={shown} wanted={wanted} />
      )}
      <p className="hint" hidden={lines.length === 0}>
        {shown.length.toLocaleString("en")} of {lines.length.toLocaleString("en")} lines
        {isOver ? "; the job has ended" : "; new lines appear here"}
        {lines.length >= TAIL && `; coddl logs ${job} shows all`}
      </p>
    </Card>
  );
}

function lineOf(data: string): LogLine {
  const line = JSON.parse(data) as LogLine;
  return { ...line, text: plain(line.text) };
}

function useLog(job: number) {
  const { server, live } = useSession();
  const [lines, setLines] = useState<readonly LogLine[]>([]);
  const [trouble, setTrouble] = useState<Error>();
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    const stopped = new AbortController();
    const { signal } = stopped;
    let fresh: LogLine[] = [];
    let last: string | undefined;
    let hasEnded = false;
    const flush = () => {
      if (fresh.length === 0) return;
      const added = fresh;
      fresh = [];
      setLines((known) => [...known, ...added].slice(-KEPT));
    };
    const timer = setInterval(flush, FLUSH_MS);
    const follow = async () => {
      while (!signal.aborted && !hasEnded) {
        try {
          const parameters = { job, follow: true, tail: TAIL };
          await server.stream("/jobs/{job}/logs", parameters, last, ({ id, event, data }) => {
            if (event === "end") hasEnded = true;
            else if (event === "message") fresh.push(lineOf(data));
            last = id ?? last;
          }, signal);
          setTrouble(undefined);
        } catch (error) {
          if (signal.aborted) return;
          live.failed(error);
          if ("because" in (error as object)) setTrouble(error as Error);
        }
        if (!hasEnded) await sleep(RETRY_MS, signal);
      }
      flush();
      setOver(hasEnded);
    };
    void follow();
    return () => {
      stopped.abort();
      clearInterval(timer);
    };
  }, [server, live, job]);
  return { lines, trouble, isOver };
}

function Lines({ lines, wanted }: { lines: readonly LogLine[]; wanted: string }) {
  const now_s = usePoolClock().now_s();
  const view = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const [top, setTop] = useState(0);
  const first = Math.max(0, Math.floor(top / LINE_PX) - 10);
  const count = Math.ceil(VIEW_PX / LINE_PX) + 20;

  useLayoutEffect(() => {
    const element = view.current;
    if (element && isAtEnd.current) element.scrollTop = element.scrollHeight;
  }, [lines]);

  const onScroll = () => {
    const element = view.current;
    if (element === null) return;
    isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < LINE_PX;
    setTop(element.scrollTop);
  };

  return (
    <div ref={view} className="lines" onScroll={onScroll} tabIndex={0} role="log" aria-label="Lines of the log">
      <div style={{ height: lines.length * LINE_PX }}>
        <div style={{ transform: `translateY(${first * LINE_PX}px)` }}>
          {lines.slice(first, first + count).map((line) => (
            <div key={line.number} className={line.stream === "stderr" ? "line bad" : `line ${line.stream}`}>
              <time>{moment(line.at_s, now_s)}</time>
              <span className="rank">{line.rank ?? "–"}</span>
              <span>{marked(line.text, wanted)}</span>
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
