// Small parts that all pages use.

import { useEffect, useRef, useState, type ReactNode } from "react";
import { colourOf, patternOf } from "../colours";
import { jobLink } from "../route";
import { Refused, type State } from "../server/api";
import { usePoolClock, useSession } from "../server/live";
import { moment } from "../words";

/** A job's colour and pattern, as in charts. */
export function Swatch({ job }: { job: number }) {
  return (
    <span
      className={`swatch ${patternOf(job)}`}
      style={{ backgroundColor: colourOf(job) }}
      aria-hidden="true"
    />
  );
}

export function JobName({ job, name }: { job: number; name: string }) {
  return (
    <a className="job-name" href={jobLink(job)} title={`${name} (job ${job})`}>
      <Swatch job={job} />
      <span>{name}</span>
    </a>
  );
}

export function StateBadge({ state }: { state: State | string }) {
  return <span className={`state ${state.toLowerCase()}`}>{state}</span>;
}

export function Card(props: {
  title?: ReactNode;
  aside?: ReactNode;
  label?: string;
  className?: string;
  children: ReactNode;
}) {
  const label = props.label ?? (typeof props.title === "string" ? props.title : undefined);
  return (
    <section className={`card ${props.className ?? ""}`} aria-label={label}>
      {(props.title || props.aside) && (
        <header>
          <h2>{props.title}</h2>
          {props.aside}
        </header>
      )}
      {props.children}
    </section>
  );
}

/** What went wrong: what, because, try. */
export function Trouble({ error }: { error: Error | undefined }) {
  if (error === undefined) return null;
  return (
    <div className="trouble" role="alert">
      {error instanceof Refused ? (
        <>
          <strong>{error.what}</strong>
          <p>because {error.because}</p>
          {error.advice && <p>try {error.advice}</p>}
        </>
      ) : (
        <strong>{error.message}</strong>
      )}
    </div>
  );
}

/** A part of a whole as a bar: 0..1. */
export function Meter({ part, label }: { part: number; label: string }) {
  const width = `${Math.min(1, Math.max(0, part)) * 100}%`;
  return (
    <span className="meter" role="img" aria-label={label} title={label}>
      <span style={{ width }} />
    </span>
  );
}

/** Names and values, less those without one. */
export function Facts({ pairs }: { pairs: [string, ReactNode][] }) {
  return (
    <dl className="facts">
      {pairs
        .filter(([, value]) => value !== "" && value !== null && value !== undefined)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

/** Some choices of which one holds. */
export function Choice<T extends string>(props: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}) {
  return (
    <div className="choice" role="group" aria-label={props.label}>
      {props.options.map(([value, text]) => (
        <button
          key={value}
          type="button"
          aria-pressed={value === props.value}
          onClick={() => props.onChange(value)}
        >
          {text}
        </button>
      ))}
    </div>
  );
}

/** A button that changes something on the server, after a question if it needs one. */
export function Action(props: {
  name: string;
  what: string; // it is done to: a job's or a node's name
  question?: string;
  isDanger?: boolean;
  act: () => Promise<unknown>;
  onDone: () => void;
}) {
  const { live } = useSession();
  const [isAsking, setAsking] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState<Error>();
  const act = async () => {
    setBusy(true);
    setTrouble(undefined);
    try {
      await props.act();
      setAsking(false);
      props.onDone();
    } catch (error) {
      live.failed(error);
      setTrouble(error as Error);
      setAsking(true);
    } finally {
      setBusy(false);
    }
  };
  const begin = () => (props.question ? setAsking(true) : void act());
  const close = () => {
    setAsking(false);
    setTrouble(undefined);
  };
  const kind = props.isDanger ? "danger" : "";
  return (
    <>
      <button type="button" className={kind} disabled={isBusy} onClick={begin}>
        {props.name}
      </button>
      {isAsking && (
        <Dialog title={`${props.name} ${props.what}?`} onClose={close}>
          {props.question && <p>{props.question}</p>}
          <Trouble error={trouble} />
          <footer>
            <button type="button" onClick={close}>
              Back
            </button>
            <button type="button" className={kind || "primary"} disabled={isBusy} onClick={act}>
              {props.name} {props.what}
            </button>
          </footer>
        </Dialog>
      )}
    </>
  );
}

export function Dialog(props: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={props.onClose} aria-label={props.title}>
      <h2>{props.title}</h2>
      {props.children}
    </dialog>
  );
}

/** A moment in words, with the date where it is not today's in the pool. */
export function Moment({ at_s }: { at_s: number | null | undefined }) {
  return moment(at_s, usePoolClock().now_s());
}

/** The pool's time now in seconds since 1970, for ages that grow. */
export function useNow(every_s = 1): number {
  const clock = usePoolClock();
  const [, setTicks] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setTicks((ticks) => ticks + 1), every_s * 1_000);
    return () => clearInterval(timer);
  }, [every_s]);
  return clock.now_s();
}
