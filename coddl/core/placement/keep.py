"""Placement that moves nobody: jobs keep the devices they have, and grow close to them.

A job that shrinks gives up devices on the nodes where it has the fewest, so that it gathers on few
nodes over time. A job that grows prefers nodes where it already is, then the node that it fills
best. A job that can't span nodes is placed before those that can.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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
    taken = {slot for slots in placed.values() for slot in slots}
    rooms = _Rooms({slot: node for slot, node in sorted(nodes.items()) if slot not in taken})
    lacking = [wish for wish in wishes if len(placed[wish.job]) < wish.gpus]
    for wish in sorted(lacking, key=lambda w: (w.spans, len(placed[w.job]) - w.gpus, w.job)):
        here = Counter(nodes[slot] for slot in placed[wish.job])
        more = rooms.take(wish.gpus - len(placed[wish.job]), here, spans=wish.spans)
        if more is None:
            del placed[wish.job]
        else:
            placed[wish.job] = (*placed[wish.job], *more)
    return placed


def _kept(wish: Wish, nodes: Mapping[int, str]) -> tuple[int, ...]:
    """Name what a job keeps of its slots."""
    usable = [slot for slot in wish.held if slot in nodes]
    if len(usable) == wish.gpus:
        return tuple(usable)
    if not wish.spans:
        return ()  # all at one place, or anew at another
    crowd = Counter(nodes[slot] for slot in usable)
    order = sorted(
        usable, key=lambda s: (nodes[s] != wish.home, -crowd[nodes[s]], nodes[s], usable.index(s))
    )
    kept = set(order[: wish.gpus])
    return tuple(slot for slot in usable if slot in kept)


class _Rooms:
    """The free slots, by node; finds the node that a number of them fills best."""

    def __init__(self, free: Mapping[int, str]) -> None:
        self._slots: dict[str, list[int]] = defaultdict(list)
        for slot, node in free.items():
            self._slots[node].append(slot)
        self._left = len(free)
        # Nodes by how many slots they have free. An entry is void once its node has fewer.
        self._by_room: dict[int, list[str]] = defaultdict(list)
        for node, slots in self._slots.items():
            heapq.heappush(self._by_room[len(slots)], node)

    def take(self, need: int, here: Counter[str], *, spans: bool) -> tuple[int, ...] | None:
        """Take that many slots, best where the job is already; None if there is no room."""
        if self._left < need:
            return None
        chosen: list[int] = []
        if spans:
            for node, _ in sorted(here.items(), key=lambda item: (-item[1], item[0])):
                chosen += self._from(node, need - len(chosen))
        while len(chosen) < need:
            left = need - len(chosen)
            best = self._tightest(left) if not spans else self._tightest(left) or self._widest()
            if best is None:
                return None
            chosen += self._from(best, left)
        return tuple(chosen)

    def _from(self, node: str, most: int) -> list[int]:
        """Take slots of a node, as many as it has up to `most`."""
        slots = self._slots.get(node, [])
        taken, self._slots[node] = slots[:most], slots[most:]
        if taken and self._slots[node]:
            heapq.heappush(self._by_room[len(self._slots[node])], node)
        self._left -= len(taken)
        return taken

    def _tightest(self, need: int) -> str | None:
        """Name the node that so many slots fill best; None if no node has that many."""
        for room in sorted(count for count in self._by_room if count >= need):
            if (node := self._first(room)) is not None:
                return node
        return None

    def _widest(self) -> str | None:
        for room in sorted(self._by_room, reverse=True):
            if (node := self._first(room)) is not None:
                return node
        return None

    def _first(self, room: int) -> str | None:
        """Name the first node with exactly so many free slots."""
        nodes = self._by_room[room]
        while nodes and len(self._slots[nodes[0]]) != room:
            heapq.heappop(nodes)
        return nodes[0] if nodes else None
