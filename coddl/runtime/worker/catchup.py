"""Brings a worker to the state of the others: an update that it missed, or one that won't count.

A worker that took part in an update with nothing has not made it, and takes its outcome. When a
worker has left its loop, the others may have begun the next pass: they go back to where it left.
"""

from collections.abc import Sequence

from coddl.runtime.worker.exchange import Exchange
from coddl.runtime.worker.handover import Handover
from coddl.runtime.worker.image import Tree
from coddl.runtime.worker.peers import Peers, TrainingProgress
from coddl.runtime.worker.rows import PeerRow
from coddl.runtime.worker.state import DeviceOf, TrainingState
from coddl.runtime.worker.supervisor_link import Groups


class CatchUp:
    """Hands state from workers that have it to those that lack it, at the end of a pass."""

    def __init__(
        self,
        peers: Peers,
        exchange: Exchange,
        state: TrainingState,
        handover: Handover,
        progress: TrainingProgress,
    ) -> None:
        self._peers = peers
        self._exchange = exchange
        self._state = state
        self._handover = handover
        self._progress = progress
        self._put_off: tuple[Tree, DeviceOf] | None = None  # until the pass has ended
        self._given: tuple[Tree, DeviceOf] | None = None  # the newest state of a peer ahead

    def miss(self, tree: Tree, device_of: DeviceOf) -> None:
        """Be given the state of a peer that has completed what failed here."""
        self._peers.miss(tree)
        self._given = (tree, device_of)
        if tree["progress"]["step"] > self._progress.step:
            self._put_off = (tree, device_of)  # what it has is what this pass should lead to
        elif not self._peers.has_missed_norm:
            self._exchange.is_idle = True  # in the same pass: what it will have at its end is taken

    def outrun(self) -> None:
        """Take note that another worker has missed something of this very pass."""
        self._exchange.has_idle = True

    def end_pass(self) -> None:
        """Take what this worker missed in the pass that has ended, and give what others did."""
        if self._put_off is not None:
            (tree, device_of), self._put_off = self._put_off, None
            self._state.restore(tree, device_of, progress=False)
        if self._exchange.has_idle:
            # A worker that was ahead takes this for something of its next pass, and shares again.
            again = self._peers.together(self._share, alone=lambda: False, missed=self._take_given)
            self._exchange.has_idle, self._exchange.is_idle = again, False
        self._given = None

    def _share(self, groups: Groups) -> bool:
        row = self._peers.row("share", value=float(self._exchange.is_idle))
        self.share(groups, self._peers.compare(groups, row))
        return False

    def _take_given(self) -> bool:
        """Take the state of a peer that has completed the share that failed here."""
        assert self._given is not None
        tree, device_of = self._given
        self._state.restore(tree, device_of, progress=False)
        return True

    def share(self, groups: Groups, found: Sequence[PeerRow]) -> None:
        """Bring the state of a worker that has it to those that reported they lack it."""
        assert groups.talk is not None
        is_behind = [each.value > 0 for each in found]
        if all(is_behind):
            return
        source = is_behind.index(False)
        behind = [rank for rank, lacks in enumerate(is_behind) if lacks]
        self._handover.bring(groups.talk, source, behind)
        if groups.talk.rank in behind and found[source].kind == "end":
            self._progress.step = found[source].step  # it left its loop before this pass
