"""What a pool looks like: answers of its server as lines for people. Reads no clock."""

import datetime
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

Answer = Mapping[str, Any]  # Any: what JSON can hold

STYLES: Final = {
    "PENDING": "yellow",
    "STARTING": "cyan",
    "RUNNING": "green",
    "RESIZING": "cyan",
    "SUSPENDED": "magenta",
    "PREEMPTED": "magenta",
    "STOPPING": "cyan",
    "SUCCEEDED": "dim green",
    "FAILED": "red",
    "CANCELLED": "dim",
    "UP": "green",
    "SILENT": "yellow",
    "DRAINED": "magenta",
    "LOST": "red",
}
# What a narrow terminal can do without, the first first.
DISPENSABLE: Final = ("RESTARTS", "PRIO", "USER", "AGE", "NODES", "RUNTIME", "ETA")
REASON_LEAST: Final = 36  # columns
INDENT_MAX: Final = 24  # where the last column of a line may begin
GAP: Final = "  "
LEVELS: Final = "▁▂▃▄▅▆▇█"
SIZES_SHOWN: Final = 8  # of a job that is described; more are left to coddl explain
SOURCES: Final = {
    "interpolated": "between measured sizes",
    "estimated": "from its profile",
    "remembered": "measured by an earlier job",
    "submitted": "given by the user",
    "assumed": "not measured yet",
}


def show(
    lines: Iterable[Text], console: Console | None = None, *, one_line_each: bool = False
) -> None:
    """Print lines: whole for a file or a program, else wrapped or cut at the terminal's edge."""
    console = console or Console(highlight=False)
    for line in lines:
        line.rstrip()
        if not console.is_terminal:
            console.print(line, soft_wrap=True)
        elif one_line_each:
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            console.print(*_wrapped(line, console), sep="\n", no_wrap=True, crop=False)


def _wrapped(line: Text, console: Console) -> list[Text]:
    """Break a line at the terminal's edge; what follows stands below its last column."""
    gaps = [gap.end() for gap in re.finditer(r"  +", line.plain[:INDENT_MAX])]
    indent = min(gaps[-1] if gaps else 0, console.width // 2)
    first, *rest = line[indent:].wrap(console, console.width - indent)
    return [line[:indent] + first, *(Text(" " * indent) + each for each in rest)]


def duration(seconds: float | None) -> str:
    """Write a span of time in at most two units."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def memory_size(size_bytes: int) -> str:
    """Write an amount of memory."""
    mib = size_bytes / (1 << 20)
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def moment(at_s: float, now_s: float) -> str:
    """Write a time of day; with the date where it is another day's."""
    at, now = (datetime.datetime.fromtimestamp(s).astimezone() for s in (at_s, now_s))
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def bounds(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least}..{most}"


def gpus_of(job: Answer) -> str:
    """Write what a job holds and may hold: 3/1..8."""
    return f"{job['gpus']}/{bounds(job['gpus_min'], job['gpus_max'])}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def unit_of(nodes: Sequence[Answer]) -> str:
    """What people call a slot: a GPU, unless no node has one."""
    kinds = [slot["kind"] for node in nodes for slot in node["slots"]]
    return "CPU slot" if kinds and all(kind == "cpu" for kind in kinds) else "GPU"


# Tables.


def table(
    rows: Sequence[Mapping[str, str]], width: int | None = None, last_least: int = REASON_LEAST
) -> list[Text]:
    """Lay out rows under the names of their columns.

    Where they don't fit the width, columns that people can do without are left out; the last one
    keeps `last_least` columns of the terminal.
    """
    if not rows:
        return []
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    least = min(widths[names[-1]], last_least)
    for name in DISPENSABLE:
        fixed = sum(widths[each] + len(GAP) for each in names[:-1]) + least
        if width is None or fixed <= width:
            break
        names = [each for each in names if each != name]
    header = Text(GAP.join(name.ljust(widths[name]) for name in names), style="bold")
    lines = [header]
    for row in rows:
        line = Text()
        for name in names:
            style = STYLES.get(row[name], "") if name == "STATE" else ""
            line.append(row[name].ljust(widths[name]) + GAP, style=style)
        lines.append(line)
    return lines


def job_row(job: Answer, now_s: float) -> dict[str, str]:
    """Return the columns of a job."""
    # The clock of an emulated pool is ahead of ours.
    told_s = job["submitted_s"] + job["runtime_s"] + job["waited_s"]
    until_s = max(now_s, told_s) if job["ended_s"] is None else job["ended_s"]
    done = f"{job['progress']:.0%}" if job["progress"] is not None else ""
    trouble = job["trouble"] or {}
    return {
        "ID": str(job["id"]),
        "NAME": job["name"],
        "USER": job["user"],
        "PRIO": str(job["priority"]),
        "STATE": job["state"],
        "GPUS": gpus_of(job),
        "NODES": ",".join(job["nodes"]),
        "AGE": duration(until_s - job["submitted_s"]),
        "RUNTIME": duration(job["runtime_s"]) if job["started_s"] is not None else "",
        "RESTARTS": str(job["restarts"]),
        "PROGRESS": done or (f"step {job['step']}" if job["step"] else ""),
        "ETA": eta(job),
        "REASON": reason_of(job) or trouble.get("what", ""),
    }


def eta(job: Answer) -> str:
    """Write the time to a job's end; with ~ where its length is predicted from its loss."""
    is_predicted = (job.get("length") or {}).get("source") == "predicted"
    return f"{'~' * is_predicted}{duration(job['eta_s'])}" if job["eta_s"] is not None else ""


def losses(points: Sequence[Answer]) -> str:
    """Write the first and the last loss, and draw those between."""
    if not points:
        return ""
    first, last = points[0], points[-1]
    told = f"{last['loss']:.4g} at step {last['step']:,}"
    if len(points) == 1:
        return told
    return f"{first['loss']:.4g} at step {first['step']:,}, {told}  {_sparkline(points)}"


def _sparkline(points: Sequence[Answer]) -> str:
    values = [point["loss"] for point in points]
    low, high = min(values), max(values)
    top = len(LEVELS) - 1
    return "".join(LEVELS[round(top * (x - low) / (high - low or 1.0))] for x in values)


def reason_of(job: Answer) -> str:
    """Return why a job waits, with the code that programs know, or why it has what it has."""
    still = f"no step for {duration(job['still_s'])}; " if job.get("still_s") else ""
    parked = f"; parked on {job['parked']['node']}" if job.get("parked") else ""
    code = f"{job['code']}: " if job["code"] else still
    return f"{code}{job['reason']}{parked}"


def jobs_lines(jobs: Sequence[Answer], now_s: float, width: int | None = None) -> list[Text]:
    """Lay out jobs, one per line."""
    if not jobs:
        return [
            Text(
                "no active jobs; submit one: coddl submit train.py, show ended ones: coddl ls --all"
            )
        ]
    rows = [job_row(job, now_s) for job in jobs]
    if any(job.get("turns") for job in jobs):
        rows = [_with_turn(row, job) for row, job in zip(rows, jobs, strict=True)]
    return table(rows, width)


def _with_turn(row: dict[str, str], job: Answer) -> dict[str, str]:
    """Add which jobs have the turn on their GPU now, and which part of its time they had."""
    found: dict[str, str] = {}
    for name, cell in row.items():
        found[name] = cell
        if name == "GPUS":
            found["TURN"] = _turn(job["turns"]) if job.get("turns") else ""
    return found


def _turn(turns: Answer) -> str:
    now = "now" if turns["has_turn"] else "" if turns["has_turn"] is None else "waits"
    share = "" if turns["share"] is None else f"{turns['share']:.0%}"
    return " ".join(filter(None, [now, share])) or "?"


def nodes_lines(nodes: Sequence[Answer], *, is_wide: bool = False) -> list[Text]:
    """Lay out nodes, one per line."""
    if not nodes:
        return [Text("no nodes; run coddl agent on a machine to add it")]
    others = [
        Text(f"{node['name']}: GPU {slot['index']} is in use by {slot['used_by_others']}")
        for node in nodes
        for slot in node["slots"]
        if slot.get("used_by_others")
    ]
    now_s = time.time()
    leaving = [
        Text(f"{node['name']}: to be empty in {duration(max(0.0, leaves_at_s - now_s))}")
        for node in nodes
        if (leaves_at_s := node.get("leaves_at_s")) is not None
    ]
    parked = [Text(f"{node['name']}: {_parked(node)}") for node in nodes if node.get("parked")]
    return [*table([_node_row(node, is_wide) for node in nodes]), *others, *leaving, *parked]


def _parked(node: Answer) -> str:
    size_bytes = node["parked_bytes"]
    memory = f", {memory_size(size_bytes)} in host memory" if size_bytes else ""
    return f"{counted(node['parked'], 'job')} parked{memory}"


def engine_lines(engine: Answer) -> list[Text]:
    """Return what brings nodes, and how many are wanted."""
    name, wanted = engine["engine"], counted(engine["wanted"], "node")
    sizes = bounds(engine["nodes_min"], engine["nodes_max"])
    because = f" ({engine['because']})" if engine["because"] else ""
    nodes = "node" if sizes == "1" else "nodes"
    lines = [f"engine {name}: {sizes} {nodes} of {engine['slots']}; {wanted} wanted{because}"]
    if engine["starting"]:
        lines += [f"engine {name}: starting: {', '.join(engine['starting'])}"]
    lines += [f"engine {name}: {note}" for note in engine["notes"]]
    if not engine["is_connected"]:
        lines += [f"engine {name} has not reported since the server was started"]
    if engine["trouble"]:
        lines += [f"engine {name} does not answer: {engine['trouble']}"]
    return [Text(line) for line in lines]


def _node_row(node: Answer, is_wide: bool) -> dict[str, str]:
    versions = {name.upper(): node.get(name) or "-" for name in ("python", "torch", "coddl")}
    kinds: dict[str, int] = {}
    for slot in node["slots"]:
        kinds[slot["kind"]] = kinds.get(slot["kind"], 0) + 1
    return {
        "NAME": node["name"],
        "STATE": node["state"],
        "USED": f"{node['used']}/{len(node['slots'])}",
        "SLOTS": ", ".join(
            f"{count} x {kind.upper() if kind == 'cpu' else kind}" for kind, count in kinds.items()
        ),
        "HOST": node["host"],
        "LEASE": duration(node["lease_left_s"]),
        **(versions if is_wide else {}),
        "JOBS": " ".join(str(job) for job in node["jobs"]),
    }


def preview_lines(preview: Answer) -> list[Text]:
    """Return what a submission would change."""
    free = f"{preview['slots_free']} of {preview['slots_total']} slots are free"
    effects = [("new", preview["job"]), *((str(each["job"]), each) for each in preview["others"])]
    rows = [
        {
            "JOB": number,
            "NAME": effect["name"],
            "GPUS": f"{effect['gpus_before']} → {effect['gpus']}",
            "REASON": effect["reason"],
        }
        for number, effect in effects
    ]
    return [
        Text(f"dry run, nothing is submitted; {free}; policy {preview['policy']}"),
        *table(rows),
    ]


# One job.


def title(job: Answer) -> Text:
    """Name a job and its state."""
    line = Text()
    line.append(job["name"], style="bold").append(f" (job {job['id']})  ")
    return line.append(job["state"], style=STYLES.get(job["state"], ""))


def fields(pairs: Sequence[tuple[str, str]]) -> list[Text]:
    """Lay out names and values, less those without one."""
    width = max(len(name) for name, _ in pairs)
    return [Text(f"  {name.ljust(width)}  {value}") for name, value in pairs if value]


def describe_lines(job: Answer, events: Sequence[Answer], now_s: float) -> list[Text]:
    """Tell all that is known of a job, and what happened to it last."""
    lines = [title(job), *fields(job_fields(job, now_s))]
    if any(each["source"] != "assumed" for each in job.get("speeds") or ()):
        lines += [Text(), *(Text("  ").append(line) for line in speed_lines(_brief(job["speeds"])))]
    if events:
        lines += [Text(), Text("latest events", style="bold")]
        lines += [Text("  ").append(event_line(event, now_s)) for event in events]
    return lines


def job_fields(job: Answer, now_s: float) -> list[tuple[str, str]]:
    """Return all that is known of a job, by name; empty: not known, or of no use."""
    steps = f" of {job['steps']:,}" if job["steps"] else ""
    done = f" ({job['progress']:.0%})" if job["progress"] is not None else ""
    speed = f"{job['samples_per_s']:,.0f} samples/s" if job["samples_per_s"] else ""
    has_pause = job["resizes"] and job["last_pause_s"]
    pause = f", last pause {job['last_pause_s']:.2f} s" if has_pause else ""
    trials = f" ({job['trials']} to measure a size)" if job.get("trials") else ""
    limits = bounds(job["gpus_min"], job["gpus_max"])
    holds = f"{job['gpus']} (bounds {limits})"
    where = f" on {', '.join(job['nodes'])}" if job["nodes"] else ""
    # A job without GPUs was saved when it left them, after its runner's last report.
    is_told = job["saved_step"] is not None and job["gpus"]
    saved = f", last checkpoint at {job['saved_step']:,}" if is_told else ""
    trouble = job["trouble"] or {}
    return [
        ("reason", reason_of(job)),
        ("GPUs", f"{holds}{where}"),
        ("memory", job.get("memory_limit") or ""),
        ("step", f"{job['step']:,}{steps}{done}{saved}"),
        ("not saved", "{what}: {because}".format_map(job["unsaved"]) if job.get("unsaved") else ""),
        ("speed", speed),
        ("ETA", eta(job)),
        ("length", (job.get("length") or {}).get("sentence", "")),
        ("loss", losses(job.get("losses") or [])),
        ("metrics", ", ".join(f"{name} {value:.4g}" for name, value in job["metrics"].items())),
        ("command", " ".join(job["command"])),
        ("tier", job["tier"]),
        ("user", job["user"]),
        ("priority", str(job["priority"])),
        ("submitted", moment(job["submitted_s"], now_s)),
        ("started", moment(job["started_s"], now_s) if job["started_s"] is not None else ""),
        ("ended", moment(job["ended_s"], now_s) if job["ended_s"] is not None else ""),
        ("time", f"{duration(job['runtime_s'])} running, {duration(job['waited_s'])} waiting"),
        ("resizes", f"{job['resizes']}{trials}{pause}"),
        ("restarts", str(job["restarts"])),
        ("exit code", "" if job["exit_code"] is None else str(job["exit_code"])),
        ("error", trouble.get("what", "")),
        ("because", trouble.get("because", "")),
        ("try", trouble.get("try", "")),
    ]


def explain_lines(told: Answer, now_s: float) -> list[Text]:
    """Return why a job is where it is, which speeds that rests on, and its history."""
    job = told["job"]
    head = title(job).append(f"  GPUS {gpus_of(job)}")
    code = f"{told['code']}: " if told["code"] else ""
    lines = [head, Text(f"{code}{told['sentence']}")]
    if job.get("still_s"):
        lines.append(Text(f"no step for {duration(job['still_s'])}"))
    if told.get("parked_sentence"):
        lines.append(Text(told["parked_sentence"]))
    limit = job.get("memory_limit")
    if limit and limit not in told["sentence"]:
        lines.append(Text(f"it needs {limit}"))
    if length := job.get("length"):
        lines.append(Text(length["sentence"]))
    if told["position"] is not None:
        place = f"number {told['position']} of the waiting jobs, in order of submission"
        lines.append(Text(f"{place}; other jobs that run: {told['ahead']}"))
    if told["speeds"] and job["tier"] == "elastic":  # others keep their size, however fast
        lines += [Text(), *speed_lines(told["speeds"])]
    if told["story"]:
        lines += [Text(), *story_lines(told["story"], now_s)]
    if told.get("removed"):
        lines += [Text(), Text(told["removed"])]
    return lines


def story_lines(story: Sequence[Answer], now_s: float) -> list[Text]:
    """Lay out what happened to a job."""
    lines = [Text(f"  {moment(each['at_s'], now_s)}  {each['text']}") for each in story]
    return [Text("history", style="bold"), *lines]


def speed_lines(speeds: Sequence[Answer]) -> list[Text]:
    """Format a job's speed at each size, next to the prediction from its profile."""
    # As long as no step has been seen, only the ratios are assumed: seconds would be made up.
    is_known = any(speed["source"] != "assumed" for speed in speeds)
    has_predicted = any(speed.get("predicted_s") for speed in speeds)
    rows = []
    for speed in speeds:
        row = {
            "GPUS": str(speed["gpus"]),
            "STEP": _step(speed["step_s"]) if is_known else "?",
            "SPEEDUP": f"{speed['speedup']:.2f}x",
        }
        if has_predicted:
            predicted_s, error = speed.get("predicted_s"), speed.get("error")
            row["PREDICTED"] = _step(predicted_s) if predicted_s else ""
            sd = f"±{speed['relative_sd']:.0%}" if speed.get("relative_sd") else ""
            row["ERROR"] = f"{error:+.0%}" if error is not None else sd
        rows.append(row | {"SOURCE": _source(speed)})
    return table(rows)


def _step(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _brief(speeds: Sequence[Answer]) -> list[Answer]:
    """Of many sizes, leave those that were measured and powers of two."""
    if len(speeds) <= SIZES_SHOWN:
        return list(speeds)
    return [
        each
        for each in speeds
        if each["source"] == "measured" or each["gpus"] & (each["gpus"] - 1) == 0
    ]


def _source(speed: Answer) -> str:
    if speed["source"] == "measured":
        if not speed["iterations"]:  # the journal keeps the time alone
            return "measured, before the server was restarted"
        return f"measured over {counted(speed['iterations'], 'step')}"
    more = SOURCES.get(speed["source"], "")
    if speed.get("is_trial"):
        more = f"{more}; worth a trial"
    return f"{speed['source']} ({more})" if more else str(speed["source"])


def event_line(event: Answer, now_s: float) -> Text:
    """Format one record of the journal."""
    return Text(f"{moment(event['at_s'], now_s)}  {event['text']}")


def log_line(line: Answer) -> str:
    """Return a line with the rank of its worker, or with its source."""
    if line["stream"] == "coddl":
        return f"coddl: {line['text']}"
    rank = line["worker"] if line["rank"] is None else line["rank"]
    return f"[{rank}] {line['text']}"


def change_line(job: Answer) -> str:
    """Sum up where a job stands, for `coddl wait`."""
    reason = f": {reason_of(job)}" if reason_of(job) else ""
    return f"{job['name']} (job {job['id']}) {job['state']}, GPUS {gpus_of(job)}{reason}"


def end_sentence(job: Answer) -> str:
    """Return how a job ended."""
    took = f" after {duration(job['jct_s'])}" if job["jct_s"] is not None else ""
    plain = job["state"] == "SUCCEEDED" and not job.get("left_early")
    said = job["reason"] or (job["trouble"] or {}).get("what", "")
    why = f": {said}" if said and not plain else ""
    return f"{job['name']} (job {job['id']}) {job['state']}{took}{why}"
