"""`coddl.Client`: a pool from Python, for notebooks and scripts. Answers are typed, as in REST."""

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from coddl.api.client import Client as ServerClient
from coddl.api.client import Credentials, find, in_path
from coddl.api.rest import EventView, JobView, LogLineView, NodeView, PolicyView, View
from coddl.api.rest_history import TimelineView
from coddl.api.rest_whatif import WhatIfResultView, WhatIfView
from coddl.api.spec import Bounds, Gpus, because_invalid
from coddl.api.submission import checked_request, uploaded_folder
from coddl.core.errors import UserError

PAGE: Final = 200
OVER: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
LOOK_S: Final = 0.2
SINCE_1970_S: Final = 1e9  # a larger number of seconds is a time, not a duration
SHOWN: Final = 50  # rows of a table

Row = TypeVar("Row", bound=View)
JobLike = JobView | int | str  # a job, its number or its name


# What a table shows of these; `columns()` gives all there is.
BRIEFLY: Final[Mapping[type[View], tuple[str, ...]]] = {
    JobView: ("id", "name", "user", "state", "gpus", "nodes", "progress", "eta_s", "reason"),
    NodeView: ("name", "host", "state", "used", "free", "jobs"),
    EventView: ("number", "at_s", "job", "node", "text"),
    LogLineView: ("at_s", "rank", "stream", "text"),
}


class Rows(list[Row]):
    """A list of views, which gives its columns and shows itself as a table."""

    def columns(self, *names: str) -> dict[str, list[Any]]:  # Any: what a view can hold
        """Return the columns, or some of them: `pandas.DataFrame(jobs.columns())`."""
        known = tuple(type(self[0]).model_fields if self else names)
        if unknown := [name for name in names if name not in known]:
            raise UserError(
                f"there is no column {unknown[0]}",
                f"the columns are {', '.join(known)}",
                f"columns({known[0]!r})",
            )
        kept = names or known
        return {name: [getattr(row, name) for row in self] for name in kept}

    def __repr__(self) -> str:
        """Show a table of text."""
        if not self:
            return "[]"
        head, *lines = self._table()
        widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (head, *lines)
        ]
        return "\n".join(text + self._more())

    def _repr_html_(self) -> str:
        """Show a table in a notebook."""
        head, *lines = self._table()
        names = "".join(f"<th>{escape(name)}</th>" for name in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
            for line in lines
        )
        return f"<table><tr>{names}</tr>{body}</table>" + "".join(
            f"<p>{more}</p>" for more in self._more()
        )

    def _table(self) -> list[list[str]]:
        """Return the names of the columns that are not empty, and the first rows."""
        columns = self.columns(*(BRIEFLY.get(type(self[0]), ()) if self else ()))
        told = [name for name, cells in columns.items() if any(c not in _NOTHING for c in cells)]
        lines = zip(*(columns[name][:SHOWN] for name in told), strict=True)
        return [told, *([_cell(cell) for cell in line] for line in lines)]

    def _more(self) -> list[str]:
        return [f"and {len(self) - SHOWN} more"] if len(self) > SHOWN else []


_NOTHING: Final[tuple[object, ...]] = (None, "", [], {})


class PoolClient:
    """A pool: the one on this machine, or the one whose server has this address."""

    def __init__(
        self, url: str = "", token: str = "", *, state_dir: str = "", tls_ca: str = ""
    ) -> None:
        """Find the pool as the commands do: by `url` and `token`, the environment, this machine.

        Nothing is asked yet; the server is reached at the first call.
        """
        folder = state_dir or os.environ.get("CODDL_STATE_DIR", "")
        address = find(url, folder, given=Credentials(tls_ca=tls_ca))
        if token:
            address = replace(address, token=token)
        self.server = ServerClient(address, on_away=warnings.warn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.server.__exit__()

    def __repr__(self) -> str:
        return f"<coddl.Client of {self.server.address.url}>"

    # Looking.

    def jobs(self, *, all: bool = False) -> Rows[JobView]:
        """Return the jobs that are not over; with `all`, the others too."""
        found: Rows[JobView] = Rows()
        cursor = None
        while True:
            asked = None if all else True
            page = self.server.get("/jobs", active=asked, limit=PAGE, cursor=cursor)
            found += [JobView.model_validate(each) for each in page["items"]]
            if (cursor := page["next"]) is None:
                return found

    def job(self, job: JobLike) -> JobView:
        """Return a job as it stands now, by its number or its name."""
        return JobView.model_validate(self.server.get(_path(job)))

    def nodes(self) -> Rows[NodeView]:
        """Return the nodes, with their GPUs."""
        items = self.server.get("/nodes")["items"]
        return Rows(NodeView.model_validate(each) for each in items)

    def policy(self) -> PolicyView:
        """Return the policy that the pool follows."""
        return PolicyView.model_validate(self.server.get("/policy"))

    def timeline(self, since_s: float | None = None, until_s: float | None = None) -> TimelineView:
        """Return which job held how many GPUs, and when; in the last hour, by default."""
        told = self.server.get("/timeline", since_s=since_s, until_s=until_s)
        return TimelineView.model_validate(told)

    def logs(
        self, job: JobLike, *, tail: int | None = None, rank: int | None = None
    ) -> Rows[LogLineView]:
        """Return what a job has printed: the last lines, or those of one worker."""
        items = self.server.get(f"{_path(job)}/logs", tail=tail, rank=rank)["items"]
        return Rows(LogLineView.model_validate(each) for each in items)

    def events(self, job: JobLike | None = None, *, limit: int = PAGE) -> Rows[EventView]:
        """Return the newest events, of the pool or of a job."""
        path = "/events" if job is None else f"{_path(job)}/events"
        items = self.server.get(path, limit=limit)["items"]
        return Rows(EventView.model_validate(each) for each in items)

    def watch(self) -> Iterator[EventView]:
        """Return everything that happens from this call on: `for event in client.watch()`.

        It has no end; leave the loop.
        """
        after = self.server.get("/events", limit=1)["next"]
        said = self.server.watch("/events", after=after, watch=True)
        return (EventView.model_validate(each.data) for each in said)

    # Changing.

    def submit(
        self,
        script: str = "",
        args: Sequence[object] = (),
        *,
        gpus: int | str | None = None,
        name: str = "",
        folder: str | Path = ".",
        **fields: Any,  # Any: as in a job file
    ) -> JobView:
        """Submit a script with its arguments; the folder is uploaded as it is now.

        `gpus` is a number or bounds, "2..8"; by default any number. `fields` are the others of a
        job file, such as `priority=5`, `env={"SEED": "1"}` or `command=["./train.sh"]`.
        """
        told: dict[str, Any] = {"script": script, "args": [str(word) for word in args], **fields}
        told |= {"gpus": gpus if isinstance(gpus, str) else str(gpus)} if gpus is not None else {}
        told |= {"name": name} if name else {}
        if not script:
            del told["script"], told["args"]
        folder = Path(folder).absolute()
        request = checked_request(told, folder)
        code = uploaded_folder(self.server, request, folder, on_left_out=warnings.warn)
        return JobView.model_validate(self.server.submit({**request, "code": code}))

    def cancel(self, job: JobLike) -> JobView:
        """Stop a job for good."""
        return self._ordered(job, "cancel")

    def suspend(self, job: JobLike) -> JobView:
        """Suspend a job: it saves its state and gives up its GPUs until it is resumed."""
        return self._ordered(job, "suspend")

    def resume(self, job: JobLike) -> JobView:
        """Resume a suspended job: it may get GPUs again."""
        return self._ordered(job, "resume")

    def resize(self, job: JobLike, gpus: int | str) -> JobView:
        """Set how many GPUs a job may have: a number, or bounds as in "2..4"."""
        bounds = _bounds(gpus)
        self.server.patch(_path(job), {"gpus_min": bounds.min, "gpus_max": bounds.max})
        return self.job(job)

    def wait(self, *jobs: JobLike, within_s: float | None = None) -> Rows[JobView]:
        """Wait until these jobs are over, or all that are not; give them as they have ended.

        Raises TimeoutError if that takes longer than `within_s`.
        """
        waited: Iterable[JobLike] = jobs or self.jobs()
        numbers = [self.job(each).id for each in waited]
        until_s = None if within_s is None else time.monotonic() + within_s
        while True:
            found = Rows(self.job(number) for number in numbers)
            left = [job for job in found if job.state not in OVER]
            if not left:
                return found
            if until_s is not None and time.monotonic() > until_s:
                names = ", ".join(f"{job.name} (job {job.id})" for job in left)
                raise TimeoutError(f"not over after {within_s:g} s: {names}")
            time.sleep(LOOK_S)

    def whatif(
        self,
        policies: Sequence[str] | str = (),
        *,
        gpus: Sequence[int] | int = (),
        since_s: float | None = None,
    ) -> WhatIfResultView:
        """Replay what happened in the pool: as it was, and under other policies or with other GPUs.

        As `coddl whatif`; the server's machine computes it.
        """
        request = {
            "policies": [policies] if isinstance(policies, str) else list(policies),
            "gpus": [gpus] if isinstance(gpus, int) else list(gpus),
            "since_s": since_s,
        }
        number = self.server.post("/whatif", request)["id"]
        while True:
            view = WhatIfView.model_validate(self.server.get(f"/whatif/{in_path(number)}"))
            if view.result is not None:
                return view.result
            if (trouble := view.trouble) is not None:
                raise UserError(trouble.what, trouble.because, trouble.try_)
            time.sleep(LOOK_S)

    def _ordered(self, job: JobLike, what: Literal["cancel", "suspend", "resume"]) -> JobView:
        self.server.post(f"{_path(job)}:{what}")
        return self.job(job)


def _bounds(gpus: int | str) -> Bounds:
    try:
        return TypeAdapter(Gpus).validate_python(gpus)
    except ValidationError as error:
        raise because_invalid(error, f"a job can't be resized to {gpus}", Bounds) from None


def _path(job: JobLike) -> str:
    """Where a job is to be asked for."""
    return f"/jobs/{in_path(job.id if isinstance(job, JobView) else job)}"


def _cell(value: object) -> str:
    if isinstance(value, float) and value > SINCE_1970_S:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, Mapping | list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


Client = PoolClient  # as users call it: `coddl.Client`
