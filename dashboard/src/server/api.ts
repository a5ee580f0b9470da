// The pool's server: requests below /api/v1 with a token, and streams of server-sent events.
// All types come from the server's OpenAPI description (schema.d.ts, written by `make web-types`).

import type { components, paths } from "../schema";

export type Shapes = components["schemas"];
export type JobView = Shapes["JobView"];
export type NodeView = Shapes["NodeView"];
export type EventView = Shapes["EventView"];
export type LogLine = Shapes["LogLineView"];
export type SpeedView = Shapes["SpeedView"];
export type State = JobView["state"];

const API = "/api/v1";

type Json<Responses> = Responses extends { 200: { content: { "application/json": infer A } } }
  ? A
  : Responses extends { 202: { content: { "application/json": infer A } } }
    ? A
    : never;
type Below<P> = P extends `/api/v1${infer Rest}` ? Rest : never;
/** Paths that can be read, without the /api/v1 before them. */
export type ReadPath = {
  [P in keyof paths]: paths[P] extends { get: { responses: object } } ? Below<P> : never;
}[keyof paths];
/** What the server answers to a GET of a path. */
export type Answer<P extends ReadPath> = paths[`/api/v1${P}` & keyof paths] extends {
  get: { responses: infer R };
}
  ? Json<R>
  : never;
export type Parameters = Record<string, string | number | boolean | undefined>;

/** The server's refusal: what, because, try. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly what: string,
    readonly because: string,
    readonly advice: string,
  ) {
    super(`${what}: ${because}`);
  }
}

/** No answer came: the server is down, or the network is. */
export class Unreachable extends Error {}

export class Server {
  constructor(
    private readonly token: string,
    private readonly user: string,
  ) {}

  /** Get what is at a path; {names} in it are filled from the parameters, the rest is its query. */
  async get<P extends ReadPath>(
    path: P,
    parameters: Parameters = {},
    signal?: AbortSignal,
  ): Promise<Answer<P>> {
    const answer = await this.ask("GET", filled(path, parameters), undefined, signal);
    return (await answer.json()) as Answer<P>;
  }

  /** Change something. */
  async change<A>(method: "POST" | "PATCH" | "PUT", path: string, body?: unknown): Promise<A> {
    return (await (await this.ask(method, API + path, body)).json()) as A;
  }

  /** Read a stream of server-sent events until it ends; raises Unreachable when it breaks off. */
  async stream(
    path: ReadPath,
    parameters: Parameters,
    after: string | undefined,
    onEvent: (event: ServerEvent) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const headers: Record<string, string> = after === undefined ? {} : { "Last-Event-ID": after };
    const answer = await this.ask("GET", filled(path, parameters), undefined, signal, headers);
    if (answer.body === null) throw new Unreachable("the stream is empty");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser(onEvent);
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        parser.take(value);
      }
    } catch (error) {
      throw signal.aborted ? error : new Unreachable("the stream broke off");
    }
  }

  private async ask(
    method: string,
    url: string,
    body?: unknown,
    signal?: AbortSignal,
    headers: Record<string, string> = {},
  ): Promise<Response> {
    let answer: Response;
    try {
      answer = await fetch(url, {
        method,
        signal,
        cache: "no-store",
        headers: {
          Authorization: `Bearer ${this.token}`,
          ...(this.user && method !== "GET" ? { "Coddl-User": this.user } : {}),
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
          ...headers,
        },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      throw signal?.aborted ? error : new Unreachable("the server does not answer");
    }
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }
}

async function refusal(answer: Response): Promise<Error> {
  try {
    const told = (await answer.json()) as Shapes["Problem"];
    return new Refused(answer.status, told.what, told.because, told.try);
  } catch {
    if (answer.status >= 502) return new Unreachable("the server does not answer"); // a proxy's word
    const because = `the answer has status ${answer.status}`;
    return new Refused(answer.status, "the request failed", because, "the server's log");
  }
}

function filled(path: string, parameters: Parameters): string {
  const query = new URLSearchParams();
  let url = API + path;
  for (const [name, value] of Object.entries(parameters)) {
    if (value === undefined) continue;
    const place = `{${name}}`;
    if (url.includes(place)) url = url.replace(place, encodeURIComponent(String(value)));
    else query.append(name, String(value));
  }
  return query.size ? `${url}?${query}` : url;
}

export interface ServerEvent {
  id: string | undefined;
  event: string;
  data: string;
}

/** Cuts a stream into server-sent events. */
export class EventParser {
  private rest = "";
  private lines: string[] = [];

  constructor(private readonly onEvent: (event: ServerEvent) => void) {}

  take(text: string): void {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    for (const line of lines) {
      const whole = line.replace(/\r$/, "");
      if (whole !== "") this.lines.push(whole);
      else this.finish();
    }
  }

  private finish(): void {
    const event: ServerEvent = { id: undefined, event: "message", data: "" };
    const data: string[] = [];
    for (const line of this.lines) {
      const [, field, value] = /^([^:]*):? ?(.*)$/.exec(line) ?? [];
      if (field === "data") data.push(value ?? "");
      else if (field === "id") event.id = value;
      else if (field === "event") event.event = value ?? "";
    }
    this.lines = [];
    event.data = data.join("\n");
    if (data.length > 0) this.onEvent(event);
  }
}
