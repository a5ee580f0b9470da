"""What `coddl top` knows of the pool, and how its user wants to see it. No screen, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coddl.cli.poolview import Answer, duration, moment
from coddl.cli.top.chart import JobMarks
from coddl.cli.top.feed import PoolLook
from coddl.cli.top.lines import SORTS, matches
from coddl.cli.waiting import OVER
from coddl.core.errors import UserError


@dataclass(frozen=True, slots=True)
class JobAction:
    """A request that changes a job."""

    verb: str
    effect: str

    def fits(self, job: Answer) -> bool:
        """Return whether a job in its state can be asked for it."""
        if job["state"] in OVER or job["state"] == "STOPPING":
            return False
        return self.verb == "cancel" or (self.verb == "resume") == (job["state"] == "SUSPENDED")

    def question(self, job: Answer) -> str:
        return f"{self.verb.capitalize()} {job['name']} (job {job['id']})?\n{self.effect}"


ACTIONS: Final = {
    action.verb: action
    for action in (
        JobAction("suspend", "It saves its state and releases its GPUs until it is resumed."),
        JobAction("resume", "It continues as soon as the policy gives it GPUs."),
        JobAction("cancel", "It stops permanently, without saving its state."),
    )
}


class PoolModel:
    """The last answers of the server, and the letters of jobs."""

    def __init__(self) -> None:
        self.look: PoolLook | None = None
        self.marks = JobMarks()
        self.sort = "ID"
        self.is_reversed = False
        self.words: Sequence[str] = ()
        self._trouble: UserError | None = None
        self._away_since_s = 0.0

    def take(self, look: PoolLook, now_s: float) -> str:
        """Take what the server answered; tell if it has not answered before."""
        away = duration(now_s - self._away_since_s)
        news = f"the server answers again, after {away}" if self._trouble else ""
        self._trouble = None
        self.look = look
        self.marks.name(look.timeline["spans"])
        return news

    def fail(self, error: UserError, now_s: float) -> None:
        """Take that the server did not answer, or refused to."""
        if self._trouble is None:
            self._away_since_s = now_s
        self._trouble = error

    def status(self, now_s: float) -> str:
        """Say what is wrong with the connection; empty: nothing."""
        if self._trouble is None:
            return ""
        since = f"no answer since {moment(self._away_since_s, now_s)}, trying again"
        return f"{since}: {self._trouble.because or self._trouble}"

    @property
    def may_change(self) -> bool:
        return self.look is not None and self.look.may_change

    def job(self, number: int | None) -> Answer | None:
        """Return a job by its number; None: it is not among those shown."""
        jobs = self.look.jobs if self.look else []
        return next((job for job in jobs if job["id"] == number), None)

    def jobs(self) -> list[Answer]:
        """Return the jobs that match the filter, sorted."""
        found = [job for job in self.look.jobs if matches(job, self.words)] if self.look else []
        return sorted(found, key=SORTS[self.sort], reverse=self.is_reversed)

    def sort_by_next(self) -> None:
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]
        self.is_reversed = False

    def list_title(self, place: str) -> str:
        """Return which jobs are listed, in which order."""
        order = f"by {self.sort}{', reversed' if self.is_reversed else ''}"
        chosen = f'  filter "{" ".join(self.words)}"' if self.words else ""
        access = "" if self.may_change or self.look is None else "  read only"
        return f"jobs {place}  {order}{chosen}{access}"
