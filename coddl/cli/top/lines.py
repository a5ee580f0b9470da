"""Lines of `coddl top`, with the words and columns of `coddl ls`; for the screen and for files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from coddl.cli.poolview import GAP, STYLES, Answer, job_row, jobs_lines, moment, table, unit_of
from coddl.cli.top.chart import FREE, JobMarks
from coddl.cli.top.feed import PoolLook

RUNNING: Final = ("STARTING", "RUNNING", "RESIZING")
WAITING: Final = ("PENDING", "PREEMPTED")
REASON_LEAST: Final = 8  # columns: the selected job's reason stands below the table
NAME_LEAST: Final = 10  # columns; a terminal of 80 columns has room for 13
SLOTS_DRAWN: Final = 16  # of a node; of larger ones, their number is shown
TAKEN: Final = "x"  # by a process that is no job's

Key = Callable[[Answer], Any]  # Any: what can be compared


def _largest_first(name: str) -> Key:
    return lambda job: (not job[name], -(job[name] or 0.0), job["id"])


SORTS: Final[Mapping[str, Key]] = {
    "ID": lambda job: job["id"],
    "NAME": lambda job: (job["name"], job["id"]),
    "STATE": lambda job: (list(STYLES).index(job["state"]), job["id"]),
    "GPUS": _largest_first("gpus"),
    "PROGRESS": _largest_first("progress"),
    "ETA": lambda job: (job["eta_s"] is None, job["eta_s"] or 0.0, job["id"]),
    "SAMPLES/S": _largest_first("samples_per_s"),
}


def pool_line(pool: Answer, nodes: Sequence[Answer], *, is_short: bool) -> Text:
    """Sum up the pool; short: without the parameters of its policy."""
    policy = pool["policy"].partition(":")[0] if is_short else pool["policy"]
    line = Text(f"policy {policy}", style="bold")
    line.append(f"{GAP}{unit_of(nodes)}s {pool['slots_used']}/{pool['slots_total']}")
    is_whole = pool["nodes_up"] == pool["nodes"]
    nodes_up = f"{pool['nodes_up']}/{pool['nodes']} up"
    line.append(f"{GAP}nodes {nodes_up}", style="" if is_whole else "red")
    return line.append(f"{GAP}jobs {job_counts(pool['jobs'])}")


def job_counts(by_state: Mapping[str, int]) -> str:
    """Return how many jobs run, wait and are suspended."""
    running = sum(by_state.get(state, 0) for state in RUNNING)
    waiting = sum(by_state.get(state, 0) for state in WAITING)
    suspended = by_state.get("SUSPENDED", 0)
    more = f", {suspended} suspended" if suspended else ""
    return f"{running} running, {waiting} waiting{more}"


def top_row(job: Answer, now_s: float) -> dict[str, str]:
    """Return the columns of `coddl ls`, and how fast the job is."""
    row = job_row(job, now_s)
    reason = row.pop("REASON")
    speed = f"{job['samples_per_s']:,.0f}" if job["samples_per_s"] else ""
    return row | {"SAMPLES/S": speed, "REASON": reason}


def top_lines(jobs: Sequence[Answer], now_s: float, width: int | None) -> list[Text]:
    """Lay out jobs, one per line, without letters."""
    rows = [top_row(job, now_s) for job in jobs]
    return table(rows, width) or jobs_lines(jobs, now_s, width)


def live_table(
    jobs: Sequence[Answer], marks: JobMarks, now_s: float, width: int
) -> tuple[Text, list[Text]]:
    """Lay out jobs with their letters in the chart: the header, and a line for each."""
    rows, name_most = [], max(NAME_LEAST, width // 6)
    for job in jobs:
        row = {" ": marks.of(job["id"])[0] if job["gpus"] else " "} | top_row(job, now_s)
        if len(row["NAME"]) > name_most:
            row["NAME"] = f"{row['NAME'][: name_most - 1]}…"
        rows.append(row)
    if not rows:
        return Text(), []
    header, *lines = table(rows, width, REASON_LEAST)
    for job, line in zip(jobs, lines, strict=True):
        if job["gpus"]:
            line.stylize(marks.of(job["id"])[1], 0, 1)
    return header, lines


def matches(job: Answer, words: Sequence[str]) -> bool:
    """Return whether each word is in the job's number, name, user, state, nodes or waiting code."""
    about = (job["id"], job["name"], job["user"], job["state"], *job["nodes"], job["code"] or "")
    text = " ".join(map(str, about)).lower()
    return all(word.lower() in text for word in words)


def node_lines(nodes: Sequence[Answer], marks: JobMarks, width: int, lines_max: int) -> list[Text]:
    """Draw the slots of each node by the letters of their jobs, as many nodes as fit."""
    rows, left = list[list[Text]]([[]]), len(nodes)
    for node in nodes:
        told = _node(node, marks)
        if rows[-1] and _length(rows[-1]) + len(told) > width:
            if len(rows) == lines_max:
                break
            rows.append([])
        rows[-1].append(told)
        left -= 1
    more = ""
    while left and _length(rows[-1]) + len(more := f"… {left} more: n") > width:
        rows[-1].pop()
        left += 1
    rows[-1].append(Text(more, style="dim"))
    return [Text(GAP).join(row) for row in rows]


def _length(row: Sequence[Text]) -> int:
    """Return the columns that texts take, with a gap after each."""
    return sum(len(each) + len(GAP) for each in row)


def _node(node: Answer, marks: JobMarks) -> Text:
    line = Text(f"{node['name']} ")
    if node["state"] != "UP":
        line.append(f"{node['state']} ", style=STYLES[node["state"]])
    if len(node["slots"]) > SLOTS_DRAWN:
        return line.append(f"{node['used']}/{len(node['slots'])}")
    for slot in node["slots"]:
        if slot["job"] is not None:
            line.append(*marks.of(slot["job"]))
        elif slot.get("used_by_others"):
            line.append(TAKEN, style="red")
        else:
            line.append(*FREE)
    return line


def decision_line(decision: Answer, unit: str, now_s: float) -> Text:
    """Format a decision: which jobs got how many GPUs, after how many, and why."""
    cause = decision["cause"]
    if decision["trouble"]:
        told = f"decision failed ({cause}): {decision['trouble']}"
    else:
        changes = [
            (each["name"], each["gpus_before"], each["gpus"]) for each in decision["changes"]
        ]
        told = ", ".join(f"{name}: {before} → {now}" for name, before, now in changes)
        told += f" {unit}{'' if all(now == 1 for *_, now in changes) else 's'} ({cause})"
    return Text(f"{moment(decision['at_s'], now_s)}  {told}")


def decision_lines(look: PoolLook, count: int) -> list[Text]:
    """Return the last decisions that changed something, the newest at the end."""
    unit = unit_of(look.nodes)
    return [decision_line(each, unit, look.at_s) for each in look.decisions[:count][::-1]]
