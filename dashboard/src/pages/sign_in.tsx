// Signing in: with the pool's token, which is kept in the browser and goes nowhere but to its server.

import { useId, useState, type FormEvent } from "react";
import { Trouble } from "../parts/basics";
import { Refused, Server } from "../server/api";

export interface Credentials {
  token: string;
  user: string;
  mayChange: boolean;
}

interface Props {
  because: Error | undefined; // why the user is asked again
  onSignedIn: (credentials: Credentials, isKept: boolean) => void;
}

/** Say of a token that is refused what can be done on this page. */
function inWords(error: Error): Error {
  if (!(error instanceof Refused) || error.status !== 401) return error;
  const advice = "paste the content of one of the two files again; coddl up shows where they are";
  return new Refused(401, "the token is not accepted", "it is not a token of this pool", advice);
}

export function SignInPage({ because, onSignedIn }: Props) {
  const [token, setToken] = useState("");
  const [user, setUser] = useState("");
  const [isKept, setKept] = useState(false);
  const [trouble, setTrouble] = useState(because && inWords(because));
  const [isBusy, setBusy] = useState(false);
  const id = useId();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const given = { token: token.trim(), user: user.trim() };
      const { access } = await new Server(given.token, given.user).get("/access");
      onSignedIn({ ...given, mayChange: access === "full" }, isKept);
    } catch (error) {
      setTrouble(inWords(error as Error));
      setBusy(false);
    }
  };
  return (
    <main className="sign-in">
      <form onSubmit={(event) => void submit(event)}>
        <h1>CoDDL</h1>
        <p className="lead">Which job holds which GPU, and why.</p>
        <label htmlFor={`${id}t`}>Token</label>
        <input id={`${id}t`} type="password" autoComplete="current-password" autoFocus required value={token} onChange={(event) => setToken(event.target.value)} aria-describedby={`${id}h`} />
        <small id={`${id}h`}>
          The content of <code>token</code> in the server’s state directory, or of{" "}
          <code>read-token</code> to look only.
        </small>
        <label htmlFor={`${id}u`}>Your name (optional)</label>
        <input id={`${id}u`} autoComplete="username" maxLength={64} value={user} onChange={(event) => setUser(event.target.value)} />
        <small>Recorded with your actions, such as cancelling a job.</small>
        <label className="check">
          <input type="checkbox" checked={isKept} onChange={() => setKept(!isKept)} /> Keep me signed in on this
          computer
        </label>
        <Trouble error={trouble} />
        <button type="submit" className="primary" disabled={isBusy}>
          Sign in
        </button>
      </form>
    </main>
  );
}
