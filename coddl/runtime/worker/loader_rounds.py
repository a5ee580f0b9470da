"""Rounds: iterations over the script's loaders, begun and ended by all workers together.

One loader begins the passes: the first that hands out a batch. A round that the job is in is taken
up by workers that join; one that a worker leaves early (`break`) ends for all.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from coddl.runtime.vnodes import seed_of
from coddl.runtime.worker.image import Tree
from coddl.runtime.worker.loader import Cut, ElasticLoader, Item
from coddl.runtime.worker.numbers import number_of
from coddl.runtime.worker.peers import copy_into
from coddl.runtime.worker.rehearsal import mark_dynamic
from coddl.runtime.worker.rows import BROKE, PeerRow
from coddl.runtime.worker.supervisor_link import Groups

if TYPE_CHECKING:
    from coddl.runtime.worker.session import TrainingSession

LOADERS_MAX: Final = 4  # whose positions are compared when a group is formed


class LoaderRounds:
    """The rounds of a session's loaders, and how far each has come."""

    def __init__(self, session: "TrainingSession") -> None:
        self.has_outer_loop = False  # coddl.epochs or coddl.steps
        self.counts_steps = False  # coddl.steps: loaders don't begin passes
        self.left_early: ElasticLoader | None = None
        self._session = session
        self._primary: ElasticLoader | None = None  # whose batches begin passes
        self._epoch_rehearsed: int | None = None

    def begin(self, loader: ElasticLoader) -> None:
        """Begin to iterate over a loader, or take up the round that the job is in."""
        session = self._session
        if session.rehearsal.is_asked and not self.has_outer_loop:
            self.begin_rehearsal()
        if session.rehearses:
            loader.begin()
            loader.open(None, keep=False)
            return
        session.start()
        self.settle()
        if loader.takes_up():
            self._take_up(loader)
            return
        if loader.rounds >= 0 and not self.has_outer_loop:
            session.tell_rigid()
        loader.begin()
        if session.is_main:
            loader.open(None, keep=session.is_led)  # here, as a DataLoader draws a seed here

    def _take_up(self, loader: ElasticLoader) -> None:
        if self._epoch_rehearsed != self._session.progress.epoch:
            loader.cool_down()  # what the script does to its dataset as an epoch begins came later
        loader.open(loader.streams, keep=True)

    def _first_batch(self, loader: ElasticLoader) -> Item:
        """Return a round's first batch: its order is the main worker's, by whose streams it is."""
        session = self._session
        loader.is_fresh = False
        if not session.is_main:
            told = self._begun_together(loader)
            if told is not None:
                session.values.take(told["values"])
            loader.open(None if told is None else told["streams"], keep=True)
            return loader.fetch()
        if not loader.is_open:  # another worker was the main one when the round began
            loader.open(None, keep=session.is_led)
        try:
            return loader.fetch()
        finally:
            self._begun_together(loader)

    def begin_rehearsal(self, epochs: range = range(1)) -> int:
        """Run the script's loop once before anyone waits for this worker; gives the epoch."""
        session = self._session
        session.guard.fingerprint([loader.dataset for loader in session.loaders])
        session.rehearsal.begin()
        session.state.has_rehearsed = True
        size = int(os.environ.get("CODDL_SIZE", "1"))
        share = max(1, session.settings.global_batch // size)
        for loader in session.loaders:
            loader.own(Cut(0, 0, (share,) * size))
        current = int(os.environ.get("CODDL_EPOCH") or epochs[0])  # the job's
        self._epoch_rehearsed = current if current in epochs else epochs[0]
        return self._epoch_rehearsed

    @property
    def handed(self) -> list[int]:
        """How many batches each loader has handed out; as many numbers in every worker."""
        counts = [loader.total for loader in self._session.loaders[:LOADERS_MAX]]
        return counts + [0] * (LOADERS_MAX - len(counts))

    def own(self, cut: Cut, handed: Sequence[int]) -> None:
        """Cut batches so, from those on that no worker has been handed."""
        for loader, first in zip(self._session.loaders, handed, strict=False):
            loader.own(replace(cut, first=first))

    def resume(self, held: Sequence[Tree]) -> None:
        """Stand where the loaders of another worker stand."""
        for loader, kept in zip(self._session.loaders, held, strict=True):
            loader.resume(kept)

    def close(self) -> None:
        """End the loaders' processes."""
        for loader in self._session.loaders:
            loader.close()

    # -- loader processes, ahead of a change of the group

    def warm_up(self) -> None:
        """Start the loaders' processes before others wait for this worker."""
        seed, worker = torch.initial_seed(), int(os.environ.get("CODDL_WORKER", "0"))
        for number, loader in enumerate(self._session.loaders):
            loader.warm_up(seed_of(seed, worker, number))

    def note_update(self) -> None:
        """Take note that an update was made."""
        for loader in self._session.loaders:
            loader.note_update()

    @property
    def reads_ahead(self) -> bool:
        """Return whether loader processes can load, in the next pass, for the next group."""
        return any(loader.reads_ahead for loader in self._session.loaders)

    def announced(self) -> Tree:
        """Send workers that will join the position of the training."""
        loaders = [loader.progress() for loader in self._session.loaders]
        return {"epoch": self._session.progress.epoch, "loaders": loaders}

    def expect(self, rank: int, counts: Sequence[int]) -> None:
        """Load what comes after the next update for a rank of the next group."""
        for loader in self._session.loaders:
            loader.expect(rank, counts)

    def read_ahead(self, announced: Tree, rank: int, counts: Sequence[int]) -> None:
        """Load what others will have come to after the next update, to join them there."""
        for loader, held in zip(self._session.loaders, announced["loaders"], strict=True):
            if self._epoch_rehearsed != announced["epoch"]:
                loader.cool_down()
            loader.read_ahead(held, rank, counts)

    def _begun_together(self, loader: ElasticLoader) -> Tree | None:
        """Give every worker the main worker's random streams and values."""
        session = self._session
        if session.is_alone:
            return None
        peers, number = session.peers, session.loaders.index(loader)
        mine = {"streams": loader.streams, "values": session.values.held()}

        def share(groups: Groups) -> Tree:
            peers.compare(groups, peers.row("begin", loader=number))
            return peers.from_main(groups, mine)

        def missed() -> Tree:
            assert peers.missed is not None
            held = peers.missed["progress"]
            return {"streams": held["loaders"][number]["streams"], "values": held["values"]}

        return peers.together(share, alone=lambda: None, missed=missed)

    def next_batch(self, loader: ElasticLoader) -> Item:
        """Return a loader's next batch; if it is the one that begins passes, end the one before."""
        session = self._session
        if session.rehearses:
            return self._rehearsed(loader)
        if self._primary is None and not self.counts_steps:
            self._primary = loader
        if not loader.is_open and loader.takes_up():
            self._take_up(loader)  # its iterator was made in the rehearsal
        if loader is not self._primary:
            batch = self._first_batch(loader) if loader.is_fresh else loader.fetch()
            if self.counts_steps:
                session.exchange.slice = loader.slice  # what the next backward is about
            return batch
        micro_batches = session.exchange.micro_batches
        if micro_batches is not None and micro_batches.is_partial:
            return micro_batches.take()
        session.boundary(may_change=not loader.is_last)
        if session.peers.leaving or session.peers.stopping:
            self._end(loader)
            raise StopIteration
        with session.pass_stats.timed("data"):
            try:
                batch = self._first_batch(loader) if loader.is_fresh else loader.fetch()
            except StopIteration:
                self._end(loader)
                raise
        weigh = session.settings.weight
        session.begin_pass(loader.slice, None if weigh is None else number_of(weigh(batch)))
        if not session.is_alone:
            mark_dynamic(batch)
        return batch if micro_batches is None else micro_batches.split(batch)

    def _rehearsed(self, loader: ElasticLoader) -> Item:
        if loader.at == 0:
            batch = loader.fetch()
            mark_dynamic(batch)
            return batch
        loader.forget()
        if self.has_outer_loop:
            raise StopIteration
        self._session.start()
        self.begin(loader)
        return self.next_batch(loader)

    def _end(self, loader: ElasticLoader, flags: int = 0) -> None:
        """End an epoch together: every worker has the main worker's buffers then."""
        session = self._session
        peers, number, buffers = (
            session.peers,
            session.loaders.index(loader),
            session.state.buffers(),
        )
        session.tell_resting()  # evaluation may take its time

        def end(groups: Groups) -> None:
            while True:
                row = replace(peers.row("end", loader=number), flags=flags)
                found = peers.compare(groups, row)
                if all(each.kind == "end" for each in found):
                    break
                self._accompany(groups, found, flags)
                session.progress.collective += 1
            if buffers:
                copy_into(buffers, peers.from_main(groups, buffers))

        peers.together(end, alone=lambda: None, missed=lambda: None)
        peers.leaving = False
        loader.end()

    def _accompany(self, groups: Groups, found: Sequence[PeerRow], flags: int) -> None:
        """Take part in what others do in the next pass: they learn now that it does not count.

        At its end they take the state that this worker has left its loop with.
        """
        session, kinds = self._session, {row.kind for row in found}
        if "gradients" in kinds:
            session.exchange.take_part(groups, found, flags)
        elif "share" in kinds:
            session.catching_up.share(groups, found)
        elif "gather" in kinds:
            session.peers.gathered(groups, found, None)

    def leave(self, loader: ElasticLoader) -> None:
        """Take note that the script has left its loop early; the others learn of it later."""
        session = self._session
        if loader is self._primary and not session.rehearses and not session.has_ended:
            self.left_early = loader

    def settle(self) -> None:
        """Do what was put off when the script left its loop: a `break` ends the epoch for all."""
        loader, self.left_early = self.left_early, None
        if loader is not None:
            self._session.end_pass(may_change=False)
            self._end(loader, 0 if loader.is_last else BROKE)
