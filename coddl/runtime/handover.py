"""Moves state between workers, and between workers and images."""

import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from coddl.runtime.errors import TrainingError
from coddl.runtime.group import Group
from coddl.runtime.image import Ahead, Stash, opened
from coddl.runtime.imagefile import Meta
from coddl.runtime.state import State

PATH_BYTES: Final = 1024
CHUNK_BYTES: Final = 16 << 20
NOTHING: Final = -1  # the step of a worker that has no state yet


class Handover:
    """Writes this worker's state, or takes another's."""

    def __init__(self, state: State, stash: Path, host: str, describe: Callable[[], Meta]) -> None:
        self._state = state
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

    def reserve(self, bytes_: int, device: torch.device) -> None:
        """Make room ahead of time; for a thread."""
        self._stash.reserve(bytes_, device if device.type == "cuda" else None)

    def open_ahead(self, device: torch.device) -> None:
        """Begin to map and pin what this worker may soon load; only a GPU has a use for it."""
        if device.type == "cuda":
            self._opening = threading.Thread(
                target=self._ahead.open, args=(self._folder, device), daemon=True
            )
            self._opening.start()

    def await_ahead(self) -> None:
        """Wait until what was begun is done."""
        if self._opening is not None:
            self._opening.join()

    def close_ahead(self, device: torch.device) -> None:
        """Give pinned memory back, without waiting for it."""
        if self._opening is not None:
            self._opening = None
            threading.Thread(target=self._ahead.close, args=(device,), daemon=True).start()

    def load(self, path: Path) -> int:
        """Become what the image holds; gives its step."""
        mine = self._describe()
        with opened(path, self._ahead) as (meta, tree):
            for key in ("virtual_nodes", "global_batch", "seed"):
                if meta[key] != mine[key]:
                    raise TrainingError(
                        f"the saved state has {key}={meta[key]}",
                        f"the script asks for {key}={mine[key]}, which would change the training",
                        f"{key}={meta[key]}, or `coddl run --fresh` to start over",
                    )
            self._state.restore(tree)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()  # copies read the mapping until then
        return int(meta["step"])

    def synchronise(self, group: Group | None, applied: int, signature: int) -> int:
        """Bring everybody in the group to the most advanced member's state; gives its step.

        If nobody has state yet, rank 0's initial weights are everybody's.
        """
        self.boundary_s = 0.0
        if group is None:
            return max(applied, 0)
        mine = torch.tensor([applied, signature, self._host])
        everybody = torch.empty(group.world * 3, dtype=torch.int64)
        start_s = time.monotonic()
        group.finish(group.all_gather(everybody, mine))
        self.boundary_s = time.monotonic() - start_s
        rows = everybody.view(group.world, 3).tolist()
        if any(row[1] != rows[0][1] for row in rows):
            raise TrainingError(
                "workers hold different parameters",
                "the script gave its optimizers other shapes on one worker than on another",
                "build the model alike on every worker; change it only as a function of the step",
            )
        steps = [row[0] for row in rows]
        source = steps.index(max(steps))
        behind = [r for r in range(group.world) if r != source and steps[r] < max(steps)]
        if max(steps) == NOTHING:
            behind = [r for r in range(group.world) if r != source]
        if behind:
            local = all(rows[r][2] == rows[source][2] for r in behind)
            self._hand_over(group, source, is_behind=group.rank in behind, local=local)
        return int(max(*steps, 0))

    def _hand_over(self, group: Group, source: int, *, is_behind: bool, local: bool) -> None:
        path = self.write() if group.rank == source else None
        if not local:
            path = self._sent(group, source, path)
        elif path is not None:
            _tell(group, source, str(path))
        else:
            path = Path(_tell(group, source, None))
        if is_behind:
            assert path is not None
            self.load(path)
        if not local and group.rank != source and path is not None:
            path.unlink(missing_ok=True)

    def _sent(self, group: Group, source: int, path: Path | None) -> Path | None:
        """Send an image's bytes to everybody; between machines."""
        size = int(_tell(group, source, None if path is None else str(path.stat().st_size)))
        target = path or self._folder / f"received-{group.rank}.img"
        with target.open("rb" if path else "wb") as file:
            for start in range(0, size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, size - start)
                data = bytearray(file.read(length)) if path else bytearray(length)
                chunk = torch.frombuffer(data, dtype=torch.uint8)
                group.finish(group.broadcast(chunk, source))
                if path is None:
                    file.write(data)
        return target


def _tell(group: Group, source: int, text: str | None) -> str:
    """Give everybody the source's short text."""
    data = bytearray((text or "").encode().ljust(PATH_BYTES, b"\0"))
    tensor = torch.frombuffer(data, dtype=torch.uint8)
    group.finish(group.broadcast(tensor, source))
    return data.rstrip(b"\0").decode()
