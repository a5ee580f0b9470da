"""Placement that moves nobody: jobs keep the devices they have, and grow close to them.

A job that shrinks gives up devices on the nodes where it has the fewest, so that it gathers on few
nodes over time. A job that grows prefers nodes where it already is, then the node that it fills
best. A job that can't span nodes is placed before those that can.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wish:
    """A job's share, and where it is now."""

    job: int
    gpus: int
    held: tuple[int, ...] = ()  # slots
    home: str | None = None  # the node it would rather not leave
    spans: bool = True  # its devices may lie on several nodes


def place(wishes: Sequence[Wish], nodes: Mapping[int, str]) -> dict[int, tuple[int, ...]]:
    """Give each job its slots, of those in `nodes`; a job without room is left out.

    `nodes` maps the usable slots to the names of their nodes.
    """
    placed = {wish.job: _kept(wish, nodes) for wish in wishes}
    free = {slot: nodes[slot] for slot in sorted(nodes.keys() - {*_all(placed.values())})}
    by_need = sorted(wishes, key=lambda w: (w.spans, len(placed[w.job]) - w.gpus, w.job))
    for wish in by_need:
        more = _grown(wish, placed[wish.job], free, nodes)
        if more is None:
            del placed[wish.job]
            continue
        for slot in more:
            del free[slot]
        placed[wish.job] = (*placed[wish.job], *more)
    return placed


def _all(slots: Iterable[tuple[int, ...]]) -> Iterable[int]:
    return (slot for each in slots for slot in each)


def _kept(wish: Wish, nodes: Mapping[int, str]) -> tuple[int, ...]:
    """Name what a job keeps of its slots."""
    usable = [slot for slot in wish.held if slot in nodes]
    if not wish.spans and len(usable) != wish.gpus:
        return ()  # all at one place, or anew at another
    crowd = Counter(nodes[slot] for slot in usable)
    order = sorted(
        usable, key=lambda s: (nodes[s] != wish.home, -crowd[nodes[s]], nodes[s], usable.index(s))
    )
    kept = set(order[: wish.gpus])
    return tuple(slot for slot in usable if slot in kept)


def _grown(
    wish: Wish, kept: tuple[int, ...], free: Mapping[int, str], nodes: Mapping[int, str]
) -> tuple[int, ...] | None:
    """Choose what a job gets beside what it keeps; None if there is no room."""
    need = wish.gpus - len(kept)
    if need == 0:
        return ()
    room = Counter(free.values())
    if not wish.spans:
        fitting = [node for node, count in room.items() if count >= need]
        if not fitting:
            return None
        best = min(fitting, key=lambda node: (room[node], node))
        return tuple(slot for slot in free if free[slot] == best)[:need]
    if len(free) < need:
        return None
    here = Counter(nodes[slot] for slot in kept)
    chosen: list[int] = []
    while len(chosen) < need:
        left = need - len(chosen)
        # Where it is already; else where it fits with least to spare; else where most fits.
        best = min(
            (node for node in room if room[node] > 0),
            key=lambda n: (-here[n], room[n] < left, room[n] if room[n] >= left else -room[n], n),
        )
        slots = [slot for slot in free if free[slot] == best and slot not in chosen][:left]
        chosen += slots
        room[best] = 0
    return tuple(chosen)
