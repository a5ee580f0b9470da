"""Moves state between workers, and between workers and images."""

import contextlib
import os
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import Meta, UnreadableImage
from coddl.runtime.worker.group import Group, GroupError
from coddl.runtime.worker.image import ImagePrefetch, Stash, Tree, nbytes, opened
from coddl.runtime.worker.offload import Offload, Offloaded
from coddl.runtime.worker.state import DeviceOf, TrainingState, mapped
from coddl.runtime.worker.state_transfer import brought, writers

if TYPE_CHECKING:
    from coddl.runtime.worker.membership import MemberSession

NOTHING: Final = -1  # the step of a worker that has no state yet


class Handover:
    """Writes this worker's state, or takes another's."""

    def __init__(
        self,
        state: TrainingState,
        device: torch.device,
        stash: Path,
        *,
        host: str,
        describe: Callable[[], Meta],
    ) -> None:
        self._state = state
        self._device = device
        self._folder = stash
        self._stash = Stash(stash)
        self._host = zlib.crc32(host.encode())
        self._describe = describe
        self._ahead = ImagePrefetch()
        self._offload = Offload(device)
        self._opening: threading.Thread | None = None
        self.boundary_s = 0.0  # how long the last synchronisation waited for the others to come

    def write(self) -> Path:
        """Write an image of everything as it is now."""
        return self._stash.write(self._describe(), self._state.tree())

    def park(self, *, writes: bool) -> tuple[Path | None, Callable[[], Offloaded]]:
        """Write an image if asked to; give its path, and what then empties the device.

        The image is the copy from which the device is filled again.
        """
        tree = self._state.tree() if writes else None
        path, copied = self._stash.write_copied(self._describe(), tree) if writes else (None, [])
        return path, lambda: self._offload.move_out(copied, self._state.on_device())

    @property
    def parked_bytes(self) -> int:
        """How much host memory a parked worker holds: images, and what is no part of them."""
        return self._offload.buffer_bytes + self._stash.bytes_

    def unpark(self) -> None:
        """Fill the device again."""
        self._offload.move_back()

    def device_bytes(self) -> dict[str, int]:
        """Return what is allocated on the device once it has done all work, and the most so far."""
        return {
            "device_bytes": self._offload.device_bytes(),
            "peak_bytes": self._offload.peak_bytes(),
        }

    def nbytes(self) -> int:
        """Return how much room an image takes."""
        return nbytes(self._state.tree())

    def reserve(self, bytes_: int) -> None:
        """Make room for images ahead of time; for a thread."""
        self._stash.reserve(bytes_, self._device if self._device.type == "cuda" else None)

    def open_ahead(self) -> None:
        """Begin to map and pin what this worker may soon load; only a GPU has a use for it."""
        if self._device.type == "cuda":
            self._opening = threading.Thread(
                target=self._ahead.open, args=(self._folder, self._device), daemon=True
            )
            self._opening.start()

    def await_ahead(self) -> None:
        """Wait until what was begun is done."""
        if self._opening is not None:
            self._opening.join()

    def close_ahead(self) -> None:
        """Give pinned memory back, without waiting for it."""
        if self._opening is not None:
            self._opening = None
            threading.Thread(target=self._ahead.close, args=(self._device,), daemon=True).start()

    def load(self, path: Path, *, is_saved: bool = False) -> None:
        """Become what the image holds; `is_saved`: a job goes on that had ended."""
        with self._opened(path) as (tree, device_of):
            self._state.restore(tree, device_of, is_saved=is_saved)

    def read(self, path: Path) -> tuple[Tree, DeviceOf]:
        """Return what the image holds, in memory of its own, and where its tensors belong."""
        homes: dict[int, torch.device] = {}

        def copied(tensor: Tensor) -> Tensor:
            copy = tensor.clone()
            homes[id(copy)] = device_of(tensor)
            return copy

        with self._opened(path) as (tree, device_of):
            return mapped(tree, copied), lambda tensor: homes.get(id(tensor), tensor.device)

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[tuple[Tree, DeviceOf]]:
        mine = self._describe()
        with opened(path, self._ahead) as (meta, tree, from_gpu):
            for key in mine.keys() - {"step", "epoch"}:
                if meta.get(key) != mine[key]:
                    raise TrainingError(
                        f"the saved state has {key}={meta.get(key)}",
                        f"the script asks for {key}={mine[key]}, which would change the training",
                        f"{key}={meta.get(key)}, or `coddl run --fresh` to start over",
                    )
            yield tree, lambda t: self._device if id(t) in from_gpu else t.device
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # copies read the mapping until then

    def synchronise(
        self, group: Group | None, work: "MemberSession", *, has_state: bool, image: Path | None
    ) -> Sequence[int]:
        """Bring all members of the group to the most advanced member's state.

        If no member has state, it comes from the image; if there is none, all take rank 0's initial
        weights. Gives how many batches each loader has handed out on any worker.
        """
        self.boundary_s = 0.0
        if group is None:
            if not has_state:
                self._first_state(image)
            return work.handed
        position = work.position if has_state else NOTHING
        about = [position, work.signature(), self._host, int(work.is_mid_pass), work.step]
        rows = self._gathered(group, [*about, *work.handed])
        different = [row for row in rows if row[1] != rows[0][1]]
        if different and has_state and any(row[0] == NOTHING for row in rows):
            raise GroupError("a worker that joins has other parameters")
        if different:
            raise TrainingError(
                "workers hold different parameters",
                "the script gave its optimizers other shapes on one worker than on another",
                "build the model alike on every worker; change it only as a function of the step",
            )
        positions = [row[0] for row in rows]
        if max(positions) == NOTHING:
            if image is not None and all(row[2] == rows[0][2] for row in rows):
                self._load_kept(image)  # within reach of all
                return work.handed
            if group.rank == 0:
                self._first_state(image)
            positions[0] = 0
        source = positions.index(max(positions))
        behind = [rank for rank, each in enumerate(positions) if each < positions[source]]
        if rows[source][3] and not has_state:
            os.kill(os.getpid(), signal.SIGKILL)  # too late to join: another one is started
        late = [row for row in rows if NOTHING < row[0] < positions[source]]
        if any(row[4] == rows[source][4] for row in late):
            work.outrun()
        if behind:
            with self._handed_over(group, source, behind, [row[2] for row in rows]) as path:
                if path is not None:
                    self._take(path, work, later=has_state)
        return [max(column) for column in zip(*(row[5:] for row in rows), work.handed, strict=True)]

    def bring(self, group: Group, source: int, behind: Sequence[int]) -> None:
        """Bring one member's state to those behind, which stay where they are in the training."""
        nodes = [node for (node,) in self._gathered(group, [self._host])]
        with self._handed_over(group, source, behind, nodes) as path:
            if path is not None:
                self._catch_up(path)

    def _catch_up(self, path: Path) -> None:
        try:
            with self._opened(path) as (tree, device_of):
                self._state.restore(tree, device_of, progress=False)
        except UnreadableImage as error:
            raise GroupError(f"{path} {error}") from error

    def _take(self, path: Path, work: "MemberSession", *, later: bool) -> None:
        """Take a state that was handed over; a worker that has one of its own may have to wait."""
        try:
            if later:
                work.miss(*self.read(path))
            else:
                self.load(path)
        except UnreadableImage as error:
            raise GroupError(f"{path} {error}") from error

    def _load_kept(self, image: Path) -> None:
        try:
            self.load(image, is_saved=True)
        except UnreadableImage as error:
            raise TrainingError(
                "the job can't go on from where it was",
                f"{image} {error}",
                "the same command without --fresh, which looks for the newest state that is whole",
            ) from error

    def _first_state(self, image: Path | None) -> None:
        """Take the state from an image, or be the one whose initial weights count."""
        if image is not None:
            self._load_kept(image)
        else:
            self._state.forget_rehearsal()

    def _gathered(self, group: Group, mine: list[int]) -> list[list[int]]:
        """Collect all members' numbers; the time it takes is that of waiting for the last one."""
        start_s = time.monotonic()
        everybody = torch.empty(group.world * len(mine), dtype=torch.int64)
        group.finish(group.all_gather(everybody, torch.tensor(mine)))
        self.boundary_s = time.monotonic() - start_s
        rows: list[list[int]] = everybody.view(group.world, len(mine)).tolist()
        return rows

    @contextlib.contextmanager
    def _handed_over(
        self, group: Group, source: int, behind: Sequence[int], nodes: Sequence[int]
    ) -> Iterator[Path | None]:
        """Bring one member's state to those behind; all take part. Gives them where it lies."""
        mine = self.write() if group.rank == source else None
        received = self._folder / f"received-{group.rank}.img"
        writer_of = writers(source, behind, nodes)
        with brought(group, source, writer_of, image=mine, received=received) as path:
            yield path
