"""What a running job looks like: in a terminal, in a log file, for a program."""

import json
import shutil
import sys
from typing import Any, Protocol, TextIO

Event = dict[str, Any]  # Any: what JSON can hold; `is` names the kind


class RunView(Protocol):
    """Shows what a supervisor tells."""

    def tell(self, event: Event) -> None: ...
    def close(self) -> None: ...


class JsonRunView:
    """One JSON object per event on stdout; the last is the summary."""

    def tell(self, event: Event) -> None:
        print(json.dumps(event), flush=True)

    def close(self) -> None:
        """Nothing is left to show."""


class TextRunView:
    """Lines of all workers with their number; below them, in a terminal, the job's state."""

    def __init__(
        self, *, quiet: bool, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._quiet = quiet
        self._is_live = self._err.isatty() and not quiet
        self._status = ""

    def tell(self, event: Event) -> None:
        """Show an event."""
        match event["is"]:
            case "log":
                stream = self._out if event["stream"] == "stdout" else self._err
                self._line(stream, f"[{event['worker']}] {event['text']}")
            case "progress" | "still":
                self._status = status_line(event)
                self._draw()
            case "error":
                told = f"error: {event['what']}\n  because {event['because']}"
                self._line(self._err, f"{told}\n  try     {event['try']}")
            case "problem" | "unsaved":
                told = f"coddl: {event['what']}\n  because {event['because']}"
                self._line(self._err, f"{told}\n  try     {event['try']}")
            case _ if not self._quiet and (text := sentence(event)):
                self._line(self._err, f"coddl: {text}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._status = ""
        self._erase()

    def _line(self, stream: TextIO, text: str) -> None:
        self._erase()
        print(text, file=stream, flush=True)
        self._draw()

    def _erase(self) -> None:
        if self._is_live:
            self._err.write("\r\x1b[2K")
            self._err.flush()

    def _draw(self) -> None:
        if self._is_live and self._status:
            columns = shutil.get_terminal_size().columns
            self._err.write("\r\x1b[2K" + fitted(self._status, columns - 1))
            self._err.flush()


def fitted(line: str, columns: int) -> str:
    """Leave out the last parts of a status line that don't fit; half a number misleads."""
    while len(line) > columns and " · " in line:
        line = line.rpartition(" · ")[0]
    return line[:columns]


def status_line(status: Event) -> str:
    """Sum up a job's state in a line."""
    steps = f"/{status['steps']:,}" if status["steps"] else ""
    parts = [
        f"{status['name']} {status['state']}",
        f"step {status['step']:,}{steps}",
        f"{status['samples_per_s']:,.0f} samples/s",
        counted(status["size"], "worker"),
        *(f"{name} {number(value)}" for name, value in status["metrics"].items()),
    ]
    if status["still_s"]:
        parts[2] = f"no step for {status['still_s']:.0f} s"
    if status["last_pause_s"]:
        parts.append(f"last pause {status['last_pause_s']:.2f} s")
    parts.append(f"generation {status['generation']}")
    return " · ".join(parts)


def sentence(event: Event) -> str:
    """Return an event in words; "" for those that are not shown."""
    match event["is"]:
        case "origin" if event["where"] != "scratch":
            where = "memory" if event["where"] == "memory" else f"checkpoint {event['path']}"
            skipped = "".join(f"; skipped: {why}" for why in event["skipped"])
            return f"resuming from step {event['step']} in {where}{skipped}"
        case "exited" if not event["expected"]:
            how = (
                f"was killed by {event['signal']}" if event["signal"] else f"exited {event['code']}"
            )
            return f"worker {event['worker']} {how}"
        case "suspended":
            where = "" if event["durable"] else ", in memory only"
            after = f"{event['serving_s']:.2f} s {AFTER[event['since']]}"
            return f"suspended at step {event['step']}{where}, {after}"
        case "lost":
            samples = counted(event["samples"], "sample")
            return f"step {event['step']} does not include {samples} of a worker that was lost"
        case "memory":
            return f"needs at least {counted(event['workers_min'], 'worker')}: {event['because']}"
        case "not-resized":
            workers, at_step = counted(event["workers"], "worker"), event["at_step"]
            ended = f"the training ended at step {event['step']:,}"
            return f"--resize to {workers} at step {at_step:,} did not happen: {ended}"
        case "left-early":
            return f"the script left its loop at step {event['step']:,} of {event['steps']:,}"
        case "stalled":
            return f"no step for {event['still_s']:.0f} s after step {event['step']:,}"
        case "unready":
            return f"worker {event['worker']} could not join: {event['because']}"
        case "ended":
            return end_sentence(event)
        case "started" | "restarted" | "resumed" | "resized" | "moved" | "rebalanced" | "regrouped":
            return change_sentence(event)
        case _:
            return ""


def change_sentence(change: Event) -> str:
    """Return a change of the group in words."""
    after = f"after step {change['step']}"
    serving = f"serving {change['serving_s']:.2f} s {AFTER[change['since']]}"
    pids = ", ".join(f"{pid} (worker {worker})" for worker, pid in change["pids"].items())
    match change["is"]:
        case "suspended":
            return f"suspended {after}"
        case "started" | "restarted" | "resumed":
            workers = counted(change["to"], "worker")
            return f"{change['is']} with {workers} {after}, {serving}; pids {pids}"
        case kind:
            parts = ", ".join(f"{part} {change[f'{part}_s']:.2f}" for part in PARTS)
            return (
                f"{kind} {change['from']} -> {counted(change['to'], 'worker')} {after}: "
                f"pause {change['pause_s']:.2f} s ({parts}), {serving}; pids {pids}"
            )


PARTS = ("boundary", "state", "swap")
AFTER = {
    "start": "after the start",
    "command": "after the command",
    "schedule": "after --resize was due",
    "failure": "after the failure",
    "decision": "after the decision",
}


def end_sentence(end: Event) -> str:
    """Return how a job ended, and what can be done about it."""
    took = f"{end['name']} {end['state']} at step {end['step']:,} after {end['seconds']:.1f} s"
    if end["state"] == "SUCCEEDED":
        pauses_s = [change["pause_s"] for change in end["changes"][1:]]
        longest = f", longest pause {max(pauses_s):.2f} s" if pauses_s else ""
        return f"{took}, {counted(len(pauses_s), 'change')}{longest}"
    if end["kept_step"] is not None:
        because = f"not saved: {end['unsaved']['because']}"
        again = f"with free space there the same command continues from step {end['kept_step']}"
        return f"{took}; {because}; {again}, until this machine restarts"
    if end["saved_step"] is not None:
        command = "the same command without --fresh" if end["fresh"] else "the same command"
        return f"{took}; {command} continues from step {end['saved_step']}"
    return took


def jobs_table(jobs: list[Event]) -> str:
    """Lay out the jobs of this machine, one per line."""
    if not jobs:
        return "no job of coddl run is running on this machine"
    rows = [("NAME", "STATE", "STEP", "WORKERS", "SAMPLES/S", "LAST PAUSE", "PIDS", "NOTE")]
    for job in jobs:
        steps = f"/{job['steps']:,}" if job["steps"] else ""
        pause = f"{job['last_pause_s']:.2f} s" if job["last_pause_s"] else ""
        speed = f"{job['samples_per_s']:,.0f}"
        pids = " ".join(f"{worker['pid']}" for worker in job["workers"] if worker["pid"])
        about = (job["name"], job["state"], f"{job['step']:,}{steps}", str(job["size"]))
        rows.append((*about, speed, pause, pids, _note(job)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _note(job: Event) -> str:
    still = [f"no step for {job['still_s']:.0f} s"] if job["still_s"] else []
    unsaved = [f"not saved: {job['unsaved']['because']}"] if job["unsaved"] else []
    return "; ".join([*still, *unsaved])


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
