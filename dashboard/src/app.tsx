// The frame of all pages: sign-in, navigation, and whether the server answers.

import { useEffect, useMemo, useState } from "react";
import { DecisionsPage } from "./pages/decisions";
import { JobPage } from "./pages/job";
import { NodesPage } from "./pages/nodes";
import { PoolPage } from "./pages/pool";
import { SignInPage, type Credentials } from "./pages/sign_in";
import { WhatIfPage } from "./pages/whatif";
import { useNow } from "./parts/basics";
import { routeOf, useHash, type Route } from "./route";
import { Server } from "./server/api";
import { Live, SessionProvider, useConnection, useSession, type Session } from "./server/live";
import { useTheme } from "./theme";

const KEY = "coddl.session";

function stored(): Credentials | undefined {
  try {
    const text = sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
    return text === null ? undefined : (JSON.parse(text) as Credentials);
  } catch {
    return undefined;
  }
}

/** Keep an object that says the same as a new one: a session lasts as long as its object. */
const unlessEqual = <T,>(now: T, next: T): T =>
  JSON.stringify(now) === JSON.stringify(next) ? now : next;

export function App() {
  const theme = useTheme();
  const [credentials, setCredentials] = useState(stored);
  const [because, setBecause] = useState<Error>();
  useEffect(() => {
    // Another tab has signed out, or in: one that is kept signed in goes along.
    const follow = (event: StorageEvent) => {
      if (event.key === KEY || event.key === null) setCredentials((now) => unlessEqual(now, stored()));
    };
    addEventListener("storage", follow);
    return () => removeEventListener("storage", follow);
  }, []);
  const signOut = (error?: Error) => {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    setBecause(error);
    setCredentials(undefined);
  };
  const signIn = (given: Credentials, isKept: boolean) => {
    (isKept ? localStorage : sessionStorage).setItem(KEY, JSON.stringify(given));
    setBecause(undefined);
    setCredentials(given);
  };
  if (credentials === undefined) return <SignInPage because={because} onSignedIn={signIn} />;
  return <SignedIn credentials={credentials} onSignOut={signOut} theme={theme} />;
}

interface SignedInProps {
  credentials: Credentials;
  onSignOut: (error?: Error) => void;
  theme: ReturnType<typeof useTheme>;
}

function SignedIn({ credentials, onSignOut, theme }: SignedInProps) {
  const [session, setSession] = useState<Session>();
  useEffect(() => {
    const server = new Server(credentials.token, credentials.user);
    const live = new Live(server, onSignOut);
    setSession({ server, live, mayChange: credentials.mayChange });
    return () => live.stopped.abort();
    // A session lasts as long as its credentials.
  }, [credentials]);
  const hash = useHash();
  const route = useMemo(() => routeOf(hash), [hash]);
  if (session === undefined) return null;
  return (
    <SessionProvider session={session}>
      <a className="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        To the content
      </a>
      <Bar route={route} onSignOut={() => onSignOut()} theme={theme} />
      <Banner />
      <main id="main" tabIndex={-1}>
        <Page route={route} />
      </main>
    </SessionProvider>
  );
}

function Page({ route }: { route: Route }) {
  useEffect(() => {
    document.title = `${titleOf(route)} · CoDDL`;
    scrollTo(0, 0);
    // The link that led here is gone: the keyboard goes on from the top of the page.
    if (document.activeElement === document.body) document.getElementById("main")?.focus({ preventScroll: true });
  }, [route]);
  switch (route.page) {
    case "pool":
      return <PoolPage />;
    case "job":
      return <JobPage key={route.job} job={route.job} />;
    case "nodes":
      return <NodesPage />;
    case "decisions":
      return <DecisionsPage number={route.number} />;
    case "whatif":
      return <WhatIfPage />;
    case "unknown":
      return (
        <>
          <h1>There is no such page</h1>
          <p className="lead">
            The address ends in <code>{route.hash}</code>, which is no page of the dashboard.
          </p>
          <a href="#/">The pool</a>
        </>
      );
  }
}

function titleOf(route: Route): string {
  if (route.page === "unknown") return "no such page";
  return route.page === "job" ? `job ${route.job}` : route.page;
}

const PAGES = [
  ["pool", "#/", "Pool"],
  ["nodes", "#/nodes", "Nodes"],
  ["decisions", "#/decisions", "Decisions"],
  ["whatif", "#/whatif", "What if"],
] as const;

interface BarProps {
  route: Route;
  onSignOut: () => void;
  theme: ReturnType<typeof useTheme>;
}

function Bar({ route, onSignOut, theme: { theme, toggle } }: BarProps) {
  const { mayChange } = useSession();
  const { is } = useConnection();
  return (
    <header className="bar">
      <a href="#/" className="brand" aria-label="CoDDL: the pool">
        <i />
        <i />
        <i /> CoDDL
      </a>
      <nav aria-label="Pages">
        {PAGES.map(([page, href, name]) => (
          <a key={page} href={href} aria-current={page === route.page ? "page" : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <div className="right">
        <span className={`live is-${is}`} title="Whether changes are shown as they happen">
          {is}
        </span>
        {!mayChange && (
          <span className="label" title="This token may look at everything and change nothing">
            read-only
          </span>
        )}
        <button type="button" className="plain" onClick={toggle} aria-label={`Use ${theme === "dark" ? "light" : "dark"} colours`}>
          {theme === "dark" ? "Light" : "Dark"}
        </button>
        <button type="button" className="plain" onClick={onSignOut}>
          Sign out
        </button>
      </div>
    </header>
  );
}

/** Says that the server is away, and for a moment that it is back. */
function Banner() {
  const connection = useConnection();
  const [wasAway, setWasAway] = useState(false);
  useNow();
  useEffect(() => {
    if (connection.is === "away") setWasAway(true);
    if (connection.is !== "live" || !wasAway) return;
    const timer = setTimeout(() => setWasAway(false), 4_000);
    return () => clearTimeout(timer);
  }, [connection, wasAway]);
  if (connection.is === "away") {
    const left = Math.max(0, Math.ceil((connection.againMs - performance.now()) / 1_000));
    return (
      <p className="banner away" role="status">
        The server does not answer; what you see may be out of date. Next try{" "}
        {left ? `in ${left} s` : "now"}.
      </p>
    );
  }
  if (!wasAway || connection.is !== "live") return null;
  return (
    <p className="banner" role="status">
      Connected again.
    </p>
  );
}
