"""The lease of a node: until when the agent may use its devices, by its own clock. Pure.

The server answers beats. An answered beat renews the lease from when it was *sent*; the server
counts from when it was received, which is later. So when the server takes a lease for over, the
agent has ended its processes already, however slow the line. If the agent is stopped, or
hangs, its fence has.
"""

from typing import Final, Literal

MARGIN_S_MAX: Final = 30.0
MARGIN_PART: Final = 0.25  # of the lease
ENDING_S_MAX: Final = 6.0  # that it takes to end processes: one with much on a GPU takes seconds
ENDING_PART: Final = 0.1  # of the lease

LeaseState = Literal[
    "none",  # never welcomed, or over and done with: nothing may run
    "held",
    "closing",  # jobs are to be made durable
    "over",  # whatever runs must end
]


class NodeLease:
    """Tracks when the server last renewed the lease; the time is an argument."""

    def __init__(self) -> None:
        self._lease_s = 0.0
        self._until_s: float | None = None
        self._sent_s: dict[int, float] = {}  # beats without an answer
        self._last = 0

    def welcome(self, lease_s: float, sent_s: float) -> None:
        """Begin, or go on, from when the hello was sent that the server has welcomed."""
        self._lease_s = lease_s
        self._sent_s.clear()
        self._extend(sent_s + lease_s)

    def beat(self, now_s: float) -> int:
        """Give the number of a beat that is sent now."""
        self._last += 1
        self._sent_s[self._last] = now_s
        return self._last

    def renewed(self, number: int) -> None:
        """Note that a beat was answered; earlier ones need no answer any more."""
        sent_s = self._sent_s.get(number)
        if sent_s is None or self._until_s is None:
            return  # of an earlier connection, a repeat, or too late: all has ended
        self._sent_s = {n: at_s for n, at_s in self._sent_s.items() if n > number}
        self._extend(sent_s + self._lease_s)

    def unanswered_s(self, now_s: float) -> float:
        """Tell for how long the server has owed an answer."""
        return max((now_s - at_s for at_s in self._sent_s.values()), default=0.0)

    def unheard_s(self, now_s: float) -> float:
        """Tell how old the newest word is that the server has answered."""
        assert self._until_s is not None, "there is no lease"
        return now_s - (self._until_s - self._lease_s)

    def standing(self, now_s: float) -> LeaseState:
        """Tell what may be done now."""
        if self._until_s is None:
            return "none"
        if now_s >= self._until_s - self.ending_s:
            return "over"
        return "closing" if now_s >= self._until_s - self.margin_s else "held"

    def end(self) -> None:
        """Note that all has ended; the next welcome begins anew."""
        self._until_s = None
        self._sent_s.clear()

    @property
    def margin_s(self) -> float:
        """How long before its end jobs are made durable."""
        return min(MARGIN_S_MAX, self._lease_s * MARGIN_PART)

    @property
    def ending_s(self) -> float:
        """How long before its end whatever runs must end, to be gone by then."""
        return min(ENDING_S_MAX, self._lease_s * ENDING_PART)

    @property
    def fence_at_s(self) -> float:
        """When another process ends whatever runs: after we should have, and before the end."""
        assert self._until_s is not None, "there is no lease"
        return self._until_s - self.ending_s / 2

    @property
    def silence_s(self) -> float:
        """How long an answer may take before the line counts as dead."""
        return min(15.0, max(2.0, self._lease_s / 3))

    def wake_at_s(self, now_s: float) -> float | None:
        """Tell when the standing changes next if nothing is heard."""
        if self._until_s is None:
            return None
        closing_s = self._until_s - self.margin_s
        return closing_s if now_s < closing_s else self._until_s - self.ending_s

    def _extend(self, until_s: float) -> None:
        # Answers may come out of order over a new connection: a lease never gets shorter.
        self._until_s = until_s if self._until_s is None else max(self._until_s, until_s)
