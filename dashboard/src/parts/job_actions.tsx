// What a user may do to a job: suspend, resume, resize, cancel.

import { useId, useState, type FocusEvent, type FormEvent } from "react";
import { Refused, type JobView } from "../server/api";
import { useSession } from "../server/live";
import { Action, Dialog, Trouble } from "./basics";

interface Props {
  job: JobView;
  unit: string; // what a slot is called
  onDone: () => void;
}

export function JobActions({ job, unit, onDone }: Props) {
  const { server } = useSession();
  const act = (what: string) => () => server.change("POST", `/jobs/${job.id}:${what}`);
  const name = `${job.name} (job ${job.id})`;
  const what = `job ${job.id}`;
  return (
    <div className="actions">
      {job.state === "SUSPENDED" ? (
        <Action name="Resume" what={what} act={act("resume")} onDone={onDone} />
      ) : (
        <Action
          name="Suspend"
          what={what}
          question={`${name} saves its state and releases its ${unit}s until it is resumed.`}
          act={act("suspend")}
          onDone={onDone}
        />
      )}
      <Resize job={job} unit={unit} onDone={onDone} />
      <Action
        name="Cancel"
        what={what}
        isDanger
        question={`${name} is stopped permanently. This can't be undone.`}
        act={act("cancel")}
        onDone={onDone}
      />
    </div>
  );
}

/** Say of bounds that are refused what to type here, instead of which command to run. */
function inDialog(error: unknown): Error {
  if (!(error instanceof Refused)) return error as Error;
  const [, least, most = least] = /^coddl resize \S+ (\d+)(?:\.\.(\d+))?$/.exec(error.advice) ?? [];
  if (least === undefined) return error;
  return new Refused(error.status, error.what, error.because, `Least ${least}, Most ${most}`);
}

const selectAll = (event: FocusEvent<HTMLInputElement>) => event.target.select();

function Resize({ job, unit, onDone }: Props) {
  const { server, live } = useSession();
  const [isOpen, setOpen] = useState(false);
  const [least, setLeast] = useState("");
  const [most, setMost] = useState("");
  const [trouble, setTrouble] = useState<Error>();
  const id = useId();
  const open = () => {
    setLeast(String(job.gpus_min));
    setMost(String(job.gpus_max));
    setTrouble(undefined);
    setOpen(true);
  };
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const body = { gpus_min: Number(least), gpus_max: Number(most) };
    if (body.gpus_min > body.gpus_max) {
      setTrouble(new Error(`Least (${least}) must not be more than Most (${most})`));
      return;
    }
    try {
      await server.change("PATCH", `/jobs/${job.id}`, body);
      setOpen(false);
      onDone();
    } catch (error) {
      live.failed(error);
      setTrouble(inDialog(error));
    }
  };
  return (
    <>
      <button type="button" onClick={open}>
        Resize
      </button>
      {isOpen && (
        <Dialog title={`Resize ${job.name}`} onClose={() => setOpen(false)}>
          <form onSubmit={(event) => void submit(event)}>
            <p>The policy gives the job a number of {unit}s within these bounds.</p>
            <div className="fields">
              <label htmlFor={`${id}l`}>Least</label>
              <input id={`${id}l`} type="number" min={1} required value={least} onFocus={selectAll} onChange={(event) => setLeast(event.target.value)} />
              <label htmlFor={`${id}m`}>Most</label>
              <input id={`${id}m`} type="number" min={1} required value={most} onFocus={selectAll} onChange={(event) => setMost(event.target.value)} />
            </div>
            <Trouble error={trouble} />
            <footer>
              <button type="button" onClick={() => setOpen(false)}>
                Back
              </button>
              <button type="submit" className="primary">
                Resize
              </button>
            </footer>
          </form>
        </Dialog>
      )}
    </>
  );
}
