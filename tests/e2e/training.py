"""A training in a pool, as a test holds it: its pace, its diary, its weights."""

from typing import Any

from tests.e2e.pool import Pool, View

SCRIPT = "train.py"


def completed(made: list[int]) -> list[int]:
    """Give the steps of a strict training, those that a new lead has begun again once.

    When another node leads, workers regroup; a step whose sums were under way is made anew.
    """
    return [step for number, step in enumerate(made) if step not in made[number - 1 : number]]


class Work:
    """A script of ours in a pool: its pace can be set, and it keeps a diary."""

    def __init__(self, pool: Pool, name: str, *args: str, pace_s: float, **fields: Any) -> None:
        self._pool = pool
        self._pace = pool.folder / f"{name}.pace"
        self._diary = pool.folder / f"{name}.diary"
        self._diary.touch()
        self.pace(pace_s)
        words = (*args, "--pace", str(self._pace), "--diary", str(self._diary))
        self.job = pool.submit(*words, name=name, **fields)

    def pace(self, pace_s: float) -> None:
        """Have each sample take that long from now on."""
        draft = self._pace.with_suffix(".draft")
        draft.write_text(str(pace_s))
        draft.replace(self._pace)

    @property
    def view(self) -> View:
        return self._pool.job(self.job)

    @property
    def lead(self) -> str:
        """Name the node whose agent leads it."""
        return str(self.view["lead"])

    @property
    def others(self) -> list[str]:
        """Name the nodes it has seats on, but for its lead's."""
        view = self.view
        return [node for node in view["nodes"] if node != view["lead"]]

    def diary(self) -> list[int]:
        """Give the steps as they were made, whoever knows of them."""
        return [int(line) for line in self._diary.read_text().split()]

    def go_on(self, steps: int = 3) -> None:
        """Wait until it has made some steps more, by its own account."""
        begun = len(self.diary())
        self._pool.wait(f"steps of job {self.job}", lambda: len(self.diary()) >= begun + steps)

    def finish(self) -> View:
        """Let it run to its end as fast as it can; the end must be a good one."""
        self.pace(0.0)
        return self._pool.wait_end(self.job)


class Training(Work):
    """One of our trainings."""

    def __init__(
        self, pool: Pool, name: str, *, steps: int, pace_s: float, args: str = "", **fields: Any
    ) -> None:
        """`pace_s` is what each pass takes: a worker makes as many as it has virtual nodes."""
        self._result = pool.folder / f"{name}.hash"
        words = (*args.split(), "--steps", str(steps), "--result", str(self._result))
        super().__init__(pool, name, *words, pace_s=pace_s, script=SCRIPT, **fields)

    @property
    def hash(self) -> str:
        """Give the hash of its final weights."""
        return self._result.read_text()
