"""The outer loops of a training: `coddl.epochs`, `coddl.steps`, `coddl.enumerate`."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.loader import ElasticLoader
from coddl.runtime.worker.session import TrainingSession

OPEN: Final = range(1 << 62)  # numbers without an end


def epochs(session: TrainingSession, told: range | None) -> Iterator[int]:
    """Yield the epochs that are left for this worker; a joiner's first one is the job's current.

    None told: they have no end.
    """
    numbers = OPEN if told is None else told
    _begin(session, "coddl.epochs", "one loop over all of them: if epoch == 5: ...")
    session.until = None if told is None else told.stop
    if session.steps is None and session.loaders:
        session.steps = None if told is None else _length(session.loaders[0], len(told))
    if session.rehearsal.is_asked and numbers:
        # One batch, and what the script does at an epoch's end.
        yield session.rounds.begin_rehearsal(numbers)
    session.progress.epoch = numbers.start
    session.start()
    if session.has_resumed:  # the job's own epoch counts, wherever this script would begin
        numbers = range(session.progress.epoch, numbers.stop, numbers.step)
    for epoch in numbers:
        session.rounds.settle()
        session.progress.epoch = epoch
        if session.peers.stopping:
            break
        yield epoch
    session.finish(is_complete=True)


def steps(session: TrainingSession, told: range | None) -> Iterator[int]:
    """Yield the steps that are left, for scripts that make their batches themselves.

    None told: they have no end.
    """
    numbers = OPEN if told is None else told
    _begin(
        session,
        "coddl.steps",
        "one loop over all of them: for step in coddl.steps(epochs * n): epoch, at = divmod(step, "
        "n)",
    )
    if told is not None:
        session.steps, session.until = len(told), told.stop
    if session.rehearsal.is_asked and numbers:
        session.rounds.begin_rehearsal()
        yield numbers[0]
    session.start()
    while session.step < len(numbers) and not session.peers.stopping:
        session.begin_step()
        yield numbers[session.step]
        session.boundary()
    session.finish(is_complete=True)


def _begin(session: TrainingSession, name: str, once: str) -> None:
    """Begin the outer loop; refuse one that a worker that joins would come to another way."""
    if session.rounds.has_outer_loop:
        session.reject(
            TrainingError(
                f"{name} was called a second time",
                "it counts through the whole training, which has one such loop",
                once,
            )
        )
    if any(loader.rounds >= 0 for loader in session.loaders):
        session.reject(
            TrainingError(
                f"a prepared loader was iterated over before {name}",
                "its batches are shared out as the job's workers come and go, which begins with "
                f"{name}",
                f"iter(loader) and next(...) inside the loop over {name}; to look at a batch "
                "first, take it from the DataLoader before coddl.prepare",
            )
        )
    session.rounds.has_outer_loop = True


def enumerated(loader: Iterable[Any], start: int) -> Iterator[tuple[int, Any]]:
    """Number a loader's batches; a joiner's first one has the number it has in the job's epoch."""
    for number, batch in enumerate(loader):
        at = loader.step if isinstance(loader, ElasticLoader) else number
        yield start + at, batch


def _length(loader: ElasticLoader, rounds: int) -> int | None:
    try:
        return len(loader) * rounds
    except TypeError:
        return None
