"""How many failures a job may have before it is given up. Pure."""

from typing import Final

JOINERS_MAX: Final = 10  # that may fail by themselves in a job's life
RESTARTS_MAX: Final = 3  # in a row, without getting further


class RetryBudget:
    """Counts failures; progress makes up for some of them."""

    def __init__(self) -> None:
        self.last_error = "no reason was reported"
        self.best_step = 0
        self._failed_joiners = 0
        self._starts_in_vain = 0  # that came no further than the one before

    def stepped(self, step: int) -> None:
        """Take in that the job has come so far."""
        if step > self.best_step:
            self.best_step, self._starts_in_vain = step, 0

    def allows_start(self) -> bool:
        """Count a start from an image; tell whether it may still come to something."""
        self._starts_in_vain += 1
        return self._starts_in_vain <= 1 + RESTARTS_MAX

    def allows_joiner(self) -> bool:
        """Count a joiner that failed; tell whether others may be tried."""
        self._failed_joiners += 1
        return self._failed_joiners <= JOINERS_MAX
