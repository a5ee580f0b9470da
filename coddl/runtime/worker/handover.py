"""Moves state between workers, and between workers and images."""

import contextlib
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import Meta, Unreadable
from coddl.runtime.worker.group import Broken, Group
from coddl.runtime.worker.image import Ahead, Stash, nbytes, opened
from coddl.runtime.worker.state import State

PATH_BYTES: Final = 1024
CHUNK_BYTES: Final = 16 << 20
NOTHING: Final = -1  # the step of a worker that has no state yet


class Handover:
    """Writes this worker's state, or takes another's."""

    def __init__(
        self,
        state: State,
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
        self._ahead = Ahead()
        self._opening: threading.Thread | None = None
        self.boundary_s = 0.0  # how long the last synchronisation waited for the others to come

    def write(self) -> Path:
        """Write an image of everything as it is now."""
        return self._stash.write(self._describe(), self._state.tree())

    def nbytes(self) -> int:
        """Tell how much room an image takes."""
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

    def load(self, path: Path) -> int:
        """Become what the image holds; gives its step."""
        mine = self._describe()
        with opened(path, self._ahead) as (meta, tree, from_gpu):
            for key in ("virtual_nodes", "global_batch", "seed", "steps_per_epoch"):
                if meta[key] != mine[key]:
                    raise TrainingError(
                        f"the saved state has {key}={meta[key]}",
                        f"the script asks for {key}={mine[key]}, which would change the training",
                        f"{key}={meta[key]}, or `coddl run --fresh` to start over",
                    )
            self._state.restore(tree, lambda t: self._device if id(t) in from_gpu else t.device)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # copies read the mapping until then
        return int(meta["step"])

    def synchronise(
        self, group: Group | None, applied: int, signature: int, image: Path | None
    ) -> int:
        """Bring everybody in the group to the most advanced member's state; gives its step.

        If nobody has state, it comes from the image; if there is none, rank 0's initial weights
        are everybody's.
        """
        self.boundary_s = 0.0
        if group is None and applied != NOTHING:
            return applied
        if group is None:
            return self._first_state(image)
        rows = self._gathered(group, [applied, signature, self._host])
        if any(row[1] != rows[0][1] for row in rows):
            raise TrainingError(
                "workers hold different parameters",
                "the script gave its optimizers other shapes on one worker than on another",
                "build the model alike on every worker; change it only as a function of the step",
            )
        steps = [row[0] for row in rows]
        if max(steps) == NOTHING:
            if image is not None and all(row[2] == rows[0][2] for row in rows):
                return self._load_kept(image)  # within reach of all
            steps[0] = self._first_state(image) if group.rank == 0 else 0
            steps[0] = int(_tell(group, 0, str(steps[0])))
        source = steps.index(max(steps))
        behind = [rank for rank, step in enumerate(steps) if step < steps[source]]
        if behind:
            local = all(rows[rank][2] == rows[source][2] for rank in behind)
            self._hand_over(group, source, is_behind=group.rank in behind, local=local)
        return int(steps[source])

    def _load_kept(self, image: Path) -> int:
        try:
            return self.load(image)
        except Unreadable as error:
            raise TrainingError(
                "the job can't go on from where it was",
                f"{image} {error}",
                "the same command again, which looks for the newest state that is whole",
            ) from error

    def _first_state(self, image: Path | None) -> int:
        """Take the state from an image, or be the one whose initial weights count."""
        if image is not None:
            return self._load_kept(image)
        self._state.forget_rehearsal()
        return 0

    def _gathered(self, group: Group, mine: list[int]) -> list[list[int]]:
        """Collect everybody's numbers; the time it takes is that of waiting for the last one."""
        start_s = time.monotonic()
        everybody = torch.empty(group.world * len(mine), dtype=torch.int64)
        group.finish(group.all_gather(everybody, torch.tensor(mine)))
        self.boundary_s = time.monotonic() - start_s
        rows: list[list[int]] = everybody.view(group.world, len(mine)).tolist()
        return rows

    def _hand_over(self, group: Group, source: int, *, is_behind: bool, local: bool) -> None:
        """Bring one member's state to those behind; all take part."""
        mine = self.write() if group.rank == source else None
        if local:
            path = Path(_tell(group, source, None if mine is None else str(mine)))
        else:
            path = self._folder / f"received-{group.rank}.img"
            self._send_bytes(group, source, mine, path if is_behind else None)
        try:
            if is_behind:
                self.load(path)
        except Unreadable as error:
            raise Broken(f"{path} {error}") from error
        finally:
            if not local:
                path.unlink(missing_ok=True)

    def _send_bytes(self, group: Group, source: int, mine: Path | None, to: Path | None) -> None:
        """Send an image's bytes to everybody; those that need it write it down."""
        size = int(_tell(group, source, None if mine is None else str(mine.stat().st_size)))
        with contextlib.ExitStack() as files:
            reader = None if mine is None else files.enter_context(mine.open("rb"))
            writer = None if to is None else files.enter_context(to.open("wb"))
            for start in range(0, size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, size - start)
                data = bytearray(length) if reader is None else bytearray(reader.read(length))
                group.finish(group.broadcast(torch.frombuffer(data, dtype=torch.uint8), source))
                if writer is not None:
                    writer.write(data)


def _tell(group: Group, source: int, text: str | None) -> str:
    """Give everybody the source's short text."""
    data = bytearray((text or "").encode().ljust(PATH_BYTES, b"\0"))
    tensor = torch.frombuffer(data, dtype=torch.uint8)
    group.finish(group.broadcast(tensor, source))
    return data.rstrip(b"\0").decode()
