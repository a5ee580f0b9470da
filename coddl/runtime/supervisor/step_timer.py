"""How fast a job trains at the size it has now. Pure."""


class StepTimer:
    """Seconds per iteration since the last change, by what its workers report."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was measured: the group has changed."""
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def stepped(self, step: int, now_s: float) -> None:
        """Take in that a step was reported; the first one after a change begins the count."""
        if self._first is None:
            self._first = self._last = (step, now_s)
        elif step > self._last[0]:
            self._last = (step, now_s)

    @property
    def iterations(self) -> int:
        """How many iterations were timed."""
        return 0 if self._first is None else self._last[0] - self._first[0]

    @property
    def step_s(self) -> float | None:
        """Their mean; None until there is one."""
        if self._first is None or not self.iterations:
            return None
        return (self._last[1] - self._first[1]) / self.iterations
