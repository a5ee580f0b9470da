// Live answers: a page names what it shows; it is asked for again when the server tells of an event
// that matters, now and then, and after the server was away. Events only ask for a refetch, and
// refetches have a least distance, so that a busy pool does not keep the browser busy.

import {
  createContext,
  useCallback,
  useContext,
  useEffect,
  useRef,
  useState,
  useSyncExternalStore,
  type ReactNode,
} from "react";
import {
  Refused,
  Server,
  Unreachable,
  type Answer,
  type EventView,
  type Parameters,
  type ReadPath,
} from "./api";
import { PoolClock } from "./clock";

const LEAST_MS = 1_000; // between two answers to the same question
const REST = 4; // times as long as an answer took, the next one is not asked for
const BACKOFF_MS = [500, 1_000, 2_000, 4_000, 8_000, 15_000];

export type Connection =
  | { is: "connecting" }
  | { is: "live" }
  | { is: "away"; againMs: number }; // when it is tried again, as of performance.now()

type Listener = (event: EventView | null) => void; // null: the server is back, anything may differ

/** The server's events as one stream, which is opened again when it breaks off. */
export class Live {
  connection: Connection = { is: "connecting" };
  readonly stopped = new AbortController();
  readonly clock = new PoolClock();
  private readonly listeners = new Set<Listener>();
  private readonly watchers = new Set<() => void>();
  private last: string | undefined;

  constructor(
    readonly server: Server,
    private readonly onUnauthorized: (error: Refused) => void,
  ) {
    void this.run();
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  read = (): Connection => this.connection;

  /** Take note of a request that failed; a token that is not valid any more ends the session. */
  failed(error: unknown): void {
    if (error instanceof Refused && error.status === 401) this.onUnauthorized(error);
  }

  private async run(): Promise<void> {
    let failures = 0;
    while (!this.stopped.signal.aborted) {
      try {
        await this.follow(() => (failures = 0));
      } catch (error) {
        this.failed(error);
      }
      const waitMs = BACKOFF_MS[Math.min(failures++, BACKOFF_MS.length - 1)] ?? 0;
      this.become({ is: "away", againMs: performance.now() + waitMs });
      await sleep(waitMs, this.stopped.signal);
    }
  }

  private async follow(onOpen: () => void): Promise<void> {
    const { signal } = this.stopped;
    // Asked first, so that the stream begins with what comes from now on.
    const page = await this.server.get("/events", { limit: 1 }, signal);
    this.last ??= String(page.next);
    this.clock.set(await this.server.get("/pool", {}, signal));
    onOpen();
    this.become({ is: "live" });
    const parameters = { watch: true, after: page.next };
    await this.server.stream("/events", parameters, undefined, (told) => {
      const event = JSON.parse(told.data) as EventView;
      for (const listener of this.listeners) listener(event);
    }, signal);
  }

  private become(connection: Connection): void {
    const isBack = connection.is === "live";
    this.connection = connection;
    for (const watcher of this.watchers) watcher();
    if (isBack) for (const listener of this.listeners) listener(null);
  }
}

export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

export interface Session {
  live: Live;
  server: Server;
  mayChange: boolean; // the token may do more than read
}

const SessionContext = createContext<Session | null>(null);

export function SessionProvider(props: { session: Session; children: ReactNode }) {
  return <SessionContext value={props.session}>{props.children}</SessionContext>;
}

export function useSession(): Session {
  const session = useContext(SessionContext);
  if (session === null) throw new Error("there is no session above this component");
  return session;
}

export function useConnection(): Connection {
  const { live } = useSession();
  return useSyncExternalStore(live.watch, live.read);
}

/** The pool's clock; the component is drawn again when the server has told of it. */
export function usePoolClock(): PoolClock {
  useConnection();
  return useSession().live.clock;
}

export interface Asked<A> {
  answer: A | undefined; // the newest one; it stays while the server is away
  trouble: Error | undefined; // why the last request failed
  ask: () => void; // ask again soon
}

interface Options {
  every_s?: number; // ask again even without an event
  wakes?: (event: EventView) => boolean; // which events matter; default: all
  isOff?: boolean;
}

/** Show what a function fetches, kept current; `key` names what is fetched. */
export function useFetched<A>(
  key: string,
  fetcher: (server: Server, signal: AbortSignal) => Promise<A>,
  { every_s = 5, wakes, isOff = false }: Options = {},
): Asked<A> {
  const { live, server } = useSession();
  const [state, setState] = useState<{ key: string; answer?: A; trouble?: Error }>({ key });
  const latest = useRef({ fetcher, wakes });
  latest.current = { fetcher, wakes };
  const wake = useRef(() => {});

  useEffect(() => {
    if (isOff) return;
    const stopped = new AbortController();
    const { signal } = stopped;
    let isDirty = true;
    let ring = () => {};
    let shown = "";

    const ask = () => {
      isDirty = true;
      ring();
    };
    wake.current = ask;
    const unlisten = live.listen((event) => {
      if (event === null || (latest.current.wakes?.(event) ?? true)) ask();
    });
    document.addEventListener("visibilitychange", ask);

    const once = async () => {
      try {
        const answer = await latest.current.fetcher(server, signal);
        const text = JSON.stringify(answer);
        if (text !== shown && !signal.aborted) setState({ key, answer });
        shown = text;
      } catch (error) {
        if (signal.aborted) return;
        live.failed(error);
        const trouble = error instanceof Error ? error : new Error(String(error));
        const isAway = error instanceof Unreachable; // the banner says so
        setState((before) => (isAway ? before : { ...before, key, trouble }));
        shown = "";
      }
    };

    const run = async () => {
      while (!signal.aborted) {
        isDirty = false;
        const begun = performance.now();
        await once();
        await sleep(Math.max(LEAST_MS, REST * (performance.now() - begun)), signal);
        const until = performance.now() + every_s * 1_000;
        while (!signal.aborted && !(isDirty && !document.hidden)) {
          const left = until - performance.now();
          if (left <= 0 && !document.hidden) break;
          await Promise.race([
            sleep(Math.max(left, LEAST_MS), signal),
            new Promise<void>((resolve) => (ring = resolve)),
          ]);
        }
      }
    };
    void run();
    return () => {
      stopped.abort();
      unlisten();
      document.removeEventListener("visibilitychange", ask);
    };
  }, [live, server, key, every_s, isOff]);

  const ask = useCallback(() => wake.current(), []);
  const isCurrent = state.key === key;
  return {
    answer: isCurrent ? state.answer : undefined,
    trouble: isCurrent ? state.trouble : undefined,
    ask,
  };
}

/** Show what the server answers to a GET, kept current. */
export function useAnswer<P extends ReadPath>(
  path: P,
  parameters: Parameters = {},
  options: Options = {},
): Asked<Answer<P>> {
  const key = `${path} ${JSON.stringify(parameters)}`;
  return useFetched(key, (server, signal) => server.get(path, parameters, signal), options);
}
