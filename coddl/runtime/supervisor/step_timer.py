"""How fast a job trains at the size it has now. Pure."""


class StepTimer:
    """Seconds per iteration since the last change, by what its workers report.

    Pauses are left out.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was measured: the group has changed."""
        self._first: tuple[int, float] | None = None  # since the last pause
        self._last = (0, 0.0)
        self._before = (0, 0.0)  # the last pause: iterations and seconds

    def pause(self) -> None:
        """Leave out the time up to the next report."""
        self._before = self._timed
        self._first = None

    def stepped(self, step: int, now_s: float) -> None:
        """Take in that a step was reported; the first one after a change begins the count."""
        if self._first is None:
            self._first = self._last = (step, now_s)
        elif step > self._last[0]:
            self._last = (step, now_s)

    @property
    def _timed(self) -> tuple[int, float]:
        """The iterations that were timed, and their seconds."""
        iterations, seconds = self._before
        if self._first is None:
            return iterations, seconds
        first, last = self._first, self._last
        return iterations + last[0] - first[0], seconds + last[1] - first[1]

    @property
    def iterations(self) -> int:
        """How many iterations were timed."""
        return self._timed[0]

    @property
    def step_s(self) -> float | None:
        """Their mean; None until there is one."""
        iterations, seconds = self._timed
        return seconds / iterations if iterations else None
