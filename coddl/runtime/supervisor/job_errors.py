"""What can be wrong with a job, in words: what, because, try."""

from collections.abc import Mapping, Sequence
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.retry_budget import RESTARTS_MAX
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message

QUOTED_MAX: Final = 300  # characters of a program's last line


def verdict(
    record: WorkerRecord, code: int, job: Job, *, needs_loop: bool, last_line: str
) -> TrainingError | None:
    """Judge a worker that exited by itself: None if its script came to its end.

    `last_line` is the last one that it wrote to stderr.
    """
    script = job.argv[0]
    if code:
        return TrainingError(
            f"{script} failed",
            failure(code, last_line, f"worker {record.number}"),
            f"coddl logs {job.id}" if job.id else f"python {script}, which runs it without coddl",
        )
    if record.history.has_prepared and not record.history.has_arrived:
        return TrainingError(
            f"{script} ended without a loop over its batches",
            "it called coddl.prepare but did not iterate over the batches",
            "for batch in batches: ...",
        )
    if needs_loop and not record.history.has_arrived:
        return TrainingError(
            f"{script} ended without calling coddl.prepare",
            "only a loop over the batches that coddl.prepare returns can be resized",
            "model, optimizer, batches = coddl.prepare(model, optimizer, dataset, ...)",
        )
    return None


def last_line(lines: Mapping[str, str]) -> str:
    """Give the last line that a process printed, of its streams the one for errors first."""
    return lines.get("stderr") or lines.get("stdout") or ""


def failure(code: int, last_line: str, what: str) -> str:
    """Say how a process failed, in its own words where it has said any."""
    said = last_line.strip()
    if len(said) > QUOTED_MAX:
        said = f"{said[:QUOTED_MAX]}…"
    return f"{said or 'it printed no error'} ({what} exited with code {code})"


def half_prepared(job: Job) -> TrainingError:
    """Tell that some workers train together and others have ended without that."""
    return TrainingError(
        f"{job.argv[0]} calls coddl.prepare in only some of its workers",
        "one worker finished without calling it, and another one did call it",
        "call coddl.prepare in every worker, or in none",
    )


def no_workers(python: str, last_words: Sequence[str], code: int) -> TrainingError:
    """Tell that an interpreter can't run workers: it has no torch, as a rule."""
    words = [line for line in last_words if line.strip()]
    return TrainingError(
        f"{python} can't run workers",
        words[-1] if words else f"it ended with code {code}",
        "--python with the interpreter that has torch and coddl installed",
    )


def mismatch(first: Message, message: Message, script: str) -> TrainingError | None:
    """Tell what is wrong with a worker that prepared another job than the first one did."""
    # How many steps are left may differ: a script may go on from a checkpoint of its own.
    length = "until" if "until" in message else "steps"
    for key in ("virtual_nodes", "global_batch", length, "seed", "signature", "data"):
        if first and first.get(key) != message.get(key):
            return TrainingError(
                "a new worker does not match the others",
                f"{script} was prepared with {key}={first.get(key)}, now with {message.get(key)}",
                "restore the script as it was when the job started",
            )
    return None


def not_now(job: Job, asked: str, target: int | None, *, ending: bool) -> TrainingError | None:
    """Tell why a job can't be resized or suspended now; None if it can."""
    if ending:
        because, try_ = "it is about to end", "nothing: it is done"
    elif target == 0:
        because, try_ = "it is SUSPENDED", f"coddl resume {job.name}"
    elif target is None:
        because, try_ = "it has not started yet", "try again in a few seconds"
    else:
        return None
    return TrainingError(f"{job.name} can't be {asked} now", because, try_)


def too_few(job: Job, workers: int, because: str, least: int) -> TrainingError:
    """Tell that slices would not fit into memory."""
    return TrainingError(f"{job.name} can't run on {workers} workers", because, f"{least} workers")


def never_fits(job: Job, because: str, most: int) -> TrainingError:
    """Tell that the batch fits on no number of workers that the job may have."""
    return TrainingError(
        f"{job.name} does not fit in memory",
        f"{because}, and the job can have at most {most} workers",
        "coddl.prepare(..., micro_batch=N), which runs a slice in parts of N samples",
    )


def not_suspended(job: Job, state: str) -> TrainingError:
    """Tell that there is nothing to resume."""
    return TrainingError(
        f"{job.name} can't be resumed",
        f"it is {state}",
        f"coddl suspend {job.name}, or coddl ls --local",
    )


def never_reached(job: Job, target: int, because: str) -> TrainingError:
    """Tell a caller that waits for a size that it will not come."""
    return TrainingError(f"{job.name} did not reach {target} workers", because, "coddl ls --local")


def restarted_in_vain(job: Job, step: int, last: str) -> TrainingError:
    """Tell that a job dies again and again without getting further."""
    return TrainingError(
        f"{job.name} made no progress in {RESTARTS_MAX} restarts",
        f"all workers were lost by step {step}; {last}",
        f"python {job.argv[0]}, which runs it without coddl; fewer workers, if memory ran out",
    )


def died_after_loop(job: Job, last: str) -> TrainingError:
    """Tell that a worker was killed while it ran the script's last lines."""
    command = "the same command without --fresh" if job.fresh else "the same command"
    return TrainingError(
        f"{job.name} did not finish",
        f"{last} after its last step, before the script ended",
        f"{command}, which continues from the last checkpoint",
    )


def silent(worker: int, silent_s: float) -> TrainingError:
    """Tell that a worker was killed because it hangs."""
    return TrainingError(
        f"worker {worker} was killed",
        f"its training loop was silent for {silent_s:.0f} s",
        "a longer --watchdog (watchdog_s in a pool) if its steps take that long",
    )


def not_saved(job: Job, error: TrainingError) -> TrainingError:
    """Tell that a job trains on because its state can't be saved."""
    because = f"{error.what}: {error.because}"
    return TrainingError(f"{job.name} cannot be suspended and keeps training", because, error.try_)


def unsaved(because: str) -> TrainingError:
    """Tell that an image was lost on its way to the disk."""
    return TrainingError(
        "a checkpoint was not finished",
        because,
        "nothing: the next checkpoint is tried as scheduled",
    )


def no_port(port: int, because: str) -> TrainingError:
    """Tell that workers can't meet where they were told to."""
    return TrainingError(
        f"port {port} can't be used", because, "another --port, or no --port for any free one"
    )


def no_store(because: str) -> TrainingError:
    """Tell that the place where workers meet does not last."""
    words = because or "it did not say why"
    return TrainingError(
        "workers cannot find each other",
        f"their rendezvous store exits at once: {words}",
        "coddl run",
    )


def slot_given_up(slot: int, last: str) -> TrainingError:
    """Tell that no worker lives long enough on a slot to join."""
    return TrainingError(
        f"no worker can be started on slot {slot}", last, "coddl resize with fewer workers"
    )


def nobody_left(job: Job, last: str) -> TrainingError:
    """Tell that every slot was given up."""
    return TrainingError(
        f"{job.name} has no worker left",
        f"each was lost before it reached its loop; {last}",
        f"python {job.argv[0]}, which runs it without coddl; fewer workers, if memory ran out",
    )
