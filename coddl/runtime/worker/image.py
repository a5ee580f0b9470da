"""All state of a job as one image: written to shared memory by a worker, mapped by the next one.

Nothing is pickled: a tree of tensors and plain values becomes JSON and a row of bytes.
The format is in `imagefile`.
"""

import fcntl
import functools
import itertools
import json
import math
import mmap
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coddl.runtime import imagefile
from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import ImageHeader, Meta, UnreadableImage, aligned
from coddl.runtime.worker.offload import HostCopy
from coddl.runtime.worker.pinned import SLICE_BYTES, pin, slices, unpin

# Any: None, bool, int, float, str, Tensor; lists, tuples and dicts of them; as in a state_dict.
Tree = Any
Skeleton = Any  # Any: what JSON can hold

SLOTS = 2  # the newest image and the one being written; readers that linger make it more
GROWTH_BYTES = 1 << 20


class TensorSpec(NamedTuple):
    """Where one tensor lies in the payload, and how to see it again."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    device: str  # its kind: "cpu" or "cuda"


# --- tree <-> skeleton and tensors -------------------------------------------------------------


def flatten(tree: Tree) -> tuple[Skeleton, list[Tensor]]:
    """Part a tree into what JSON can hold and its tensors; what can't be kept is an error."""
    tensors: list[Tensor] = []
    return _encoded(tree, (), tensors), tensors


def _encoded(value: Tree, path: tuple[Any, ...], tensors: list[Tensor]) -> Skeleton:
    """Encode one value. Plain JSON stands for itself, an object with one key for all else."""
    match value:
        case None | bool():
            return value
        case str():
            return str(value)
        case int():
            return int(value)
        case float():  # also numpy.float64
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        case Tensor():
            if value.layout is not torch.strided or value.is_quantized or value.is_meta:
                raise _unkept(path, f"a tensor of layout {value.layout} on {value.device}")
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        case Counter():
            return {"counter": _pairs(value, path, tensors)}
        case dict() if all(type(key) is str for key in value):
            return {"dict": {k: _encoded(v, (*path, k), tensors) for k, v in value.items()}}
        case dict():
            return {"pairs": _pairs(value, path, tensors)}
        case list():
            return [_encoded(item, (*path, i), tensors) for i, item in enumerate(value)]
        case tuple() if type(value) in (tuple, torch.Size):  # a named one would lose its names
            return {"tuple": [_encoded(v, (*path, i), tensors) for i, v in enumerate(value)]}
        case torch.dtype():
            return {"dtype": _name(value)}
        case torch.device():
            return {"device": str(value)}
    # numpy need not be installed, so its scalars are known by their ways.
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        plain = value.item()
        if isinstance(plain, bool | int | float):
            return _encoded(plain, path, tensors)
    raise _unkept(path, f"a {type(value).__name__}")


def _pairs(
    value: dict[Any, Tree], path: tuple[Any, ...], tensors: list[Tensor]
) -> list[list[Skeleton]]:
    return [
        [_encoded(key, (*path, key), tensors), _encoded(item, (*path, key), tensors)]
        for key, item in value.items()
    ]


def _unkept(path: tuple[Any, ...], what: str) -> TrainingError:
    where = ".".join(map(str, path)) or "the state"
    return TrainingError(
        f"{where} holds {what}",
        "only tensors, numbers, strings, lists, tuples and dicts can be kept through a resize",
        "give the object a state_dict() of those, or leave it out of coddl.track()",
    )


def unflatten(skeleton: Skeleton, tensors: Sequence[Tensor]) -> Tree:
    """Put a tree together again."""
    if isinstance(skeleton, list):
        return [unflatten(item, tensors) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, held),) = skeleton.items()
    match kind:
        case "tensor":
            return tensors[held]
        case "dict":
            return {key: unflatten(item, tensors) for key, item in held.items()}
        case "pairs":
            return {unflatten(key, tensors): unflatten(item, tensors) for key, item in held}
        case "counter":
            return Counter({unflatten(k, tensors): unflatten(v, tensors) for k, v in held})
        case "tuple":
            return tuple(unflatten(item, tensors) for item in held)
        case "float":
            return float(held)
        case "dtype":
            return getattr(torch, held)
        case "device":
            return torch.device(held)
    raise UnreadableImage(f"has a damaged manifest: {kind!r} is no kind of value")


# --- tensors <-> bytes -------------------------------------------------------------------------


def placed(tensors: Iterable[Tensor]) -> tuple[list[TensorSpec], int]:
    """Give each tensor its place in the payload, and the payload's size."""
    places, offset = [], 0
    for tensor in tensors:
        dtype = _name(tensor.dtype)
        places.append(
            TensorSpec(dtype, tuple(tensor.shape), _dense(tensor), offset, tensor.device.type)
        )
        offset += aligned(tensor.numel() * tensor.element_size(), imagefile.TENSOR_ALIGN_BYTES)
    return places, offset


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dense(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides it has without gaps: its own if it has none, so that copies are fast."""
    if tensor.is_contiguous():
        return tensor.stride()
    return torch.empty_like(tensor, device="meta").stride()


def _seen(memory: Tensor, payload_offset: int, place: TensorSpec) -> Tensor:
    """View a place of mapped memory as its tensor."""
    dtype: torch.dtype = getattr(torch, place.dtype)
    start = payload_offset + place.offset
    bytes_ = math.prod(place.shape) * dtype.itemsize
    return memory[start : start + bytes_].view(dtype).as_strided(place.shape, place.stride)


def _planned(meta: Meta, tree: Tree) -> tuple[ImageHeader, bytes, list[TensorSpec], list[Tensor]]:
    skeleton, tensors = flatten(tree)
    places, payload_bytes = placed(tensors)
    manifest = json.dumps(
        {"meta": meta, "tree": skeleton, "tensors": places}, separators=(",", ":"), allow_nan=False
    ).encode()
    return ImageHeader.of(len(manifest), payload_bytes), manifest, places, tensors


def nbytes(tree: Tree) -> int:
    """Return how many bytes to reserve for images of the tree."""
    header, *_ = _planned({}, tree)
    return header.bytes_ + imagefile.PAGE_BYTES  # for what `meta` will hold


# --- writing -----------------------------------------------------------------------------------


class _StashFile:
    """One file of a stash, mapped for writing. Grows, never shrinks: others may have it mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._map: mmap.mmap | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._touched_bytes = 0
        self._pins: list[tuple[Tensor, torch.device]] = []
        self._pinnable = True
        self._views: list[Tensor] = []
        self._views_of: tuple[int, list[TensorSpec]] = (0, [])

    @property
    def bytes_(self) -> int:
        return os.fstat(self._fd).st_size

    def lock(self) -> bool:
        """Take the slot for writing, unless it is being read or written."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def grow(self, bytes_: int) -> None:
        """Allocate and map room. Fails before any byte of an image is touched."""
        while self._allocate(bytes_):
            pass
        self._remap(bytes_)

    def advance(self, bytes_: int, device: torch.device | None) -> bool:
        """Do one slice of the work that `write` would wait for; False when nothing is left."""
        if self._allocate(bytes_) or self._remap(bytes_):
            return True
        if self._touched_bytes < self._memory.numel():
            start = self._touched_bytes
            self._touched_bytes += SLICE_BYTES
            # Read, not written: another worker may be writing here. Torch lets other threads run.
            self._memory[start : start + SLICE_BYTES : imagefile.PAGE_BYTES].amax()
            return True
        return device is not None and self.pin(device)

    def _allocate(self, bytes_: int) -> bool:
        file_bytes = os.fstat(self._fd).st_size
        missing_bytes = aligned(bytes_, GROWTH_BYTES) - file_bytes
        if missing_bytes > 0:
            os.posix_fallocate(self._fd, file_bytes, min(missing_bytes, SLICE_BYTES))
        return missing_bytes > 0

    def _remap(self, bytes_: int) -> bool:
        if self._memory.numel() >= bytes_:
            return False
        self.unmap()
        self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        self._memory = torch.frombuffer(self._map, dtype=torch.uint8)
        return True

    def pin(self, device: torch.device) -> bool:
        """Pin one more slice; False when all is pinned, or can't be."""
        start = len(self._pins) * SLICE_BYTES
        if not self._pinnable or start >= self._memory.numel():
            return False
        part = self._memory[start : start + SLICE_BYTES]
        self._pinnable = pin(part, device)
        if self._pinnable:
            self._pins.append((part, device))
        return self._pinnable

    def fill(
        self, header: ImageHeader, manifest: bytes, places: list[TensorSpec], tensors: list[Tensor]
    ) -> None:
        """Write an image; whatever happens on the way, it is complete only at the end."""
        cuda = {tensor.device for tensor in tensors if tensor.is_cuda}
        for device in cuda:
            while self.pin(device):
                pass
        assert self._map is not None
        self._map[imagefile.COMPLETE_AT] = imagefile.INCOMPLETE
        self._map[: imagefile.HEADER_BYTES] = header.packed()
        end = imagefile.HEADER_BYTES + len(manifest)
        self._map[imagefile.HEADER_BYTES : end] = manifest
        if self._views_of != (header.payload_offset, places):
            self._views = [_seen(self._memory, header.payload_offset, place) for place in places]
            self._views_of = (header.payload_offset, places)
        for view, tensor in zip(self._views, tensors, strict=True):
            if tensor.is_cuda and self._is_cut(view):
                self._copy_in_parts(view, tensor)
            else:
                view.copy_(tensor, non_blocking=True)
        for device in cuda:
            torch.cuda.current_stream(device).synchronize()
        self._map[imagefile.COMPLETE_AT] = imagefile.COMPLETE

    def _is_cut(self, view: Tensor) -> bool:
        start = view.data_ptr() - self._memory.data_ptr()
        return start // SLICE_BYTES != (start + view.nbytes - 1) // SLICE_BYTES

    def _copy_in_parts(self, view: Tensor, tensor: Tensor) -> None:
        """Copy slice by slice: CUDA refuses a copy that crosses from one pin to the next."""
        dense = tensor.resolve_conj().resolve_neg()
        if dense.stride() != view.stride():
            dense = dense.clone()
        to = view.as_strided((view.numel(),), (1,))
        source = dense.as_strided((view.numel(),), (1,))
        at = view.data_ptr() - self._memory.data_ptr()
        first = 0
        while first < view.numel():
            room_bytes = SLICE_BYTES - (at + first * view.itemsize) % SLICE_BYTES
            last = first + room_bytes // view.itemsize
            to[first:last].copy_(source[first:last], non_blocking=True)
            first = last

    def copies(self, tensors: list[Tensor]) -> list[HostCopy]:
        """Return where the bytes of the tensors are that were written last."""
        base = self._memory.data_ptr()
        found = []
        for view, tensor in zip(self._views, tensors, strict=True):
            start = view.data_ptr() - base
            found.append(HostCopy(tensor, slices(self._memory, start, start + view.nbytes)))
        return found

    def unmap(self) -> None:
        """Release the memory. The mapping itself ends with the last tensor that uses it."""
        for part, device in self._pins:
            unpin(part, device)
        self._pins, self._pinnable, self._touched_bytes = [], True, 0
        self._views, self._views_of = [], (0, [])
        self._map, self._memory = None, torch.empty(0, dtype=torch.uint8)

    def close(self) -> None:
        self.unmap()
        os.close(self._fd)


class Stash:
    """Writes a job's images into a folder of shared memory; the newest complete one always stays.

    Several workers may write into one folder, each through a stash of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, _StashFile] = {}
        self._turn = threading.Condition()
        self._writer_waits = False
        self._closed = False

    def reserve(self, bytes_: int, device: torch.device | None = None) -> None:
        """Allocate, touch and, for CUDA, pin room for images ahead of time; meant for a thread.

        A write that comes meanwhile waits for one slice at most.
        """
        for index in range(SLOTS):
            more = True
            while more:
                with self._turn, self._refusals(bytes_):
                    self._turn.wait_for(lambda: not self._writer_waits)
                    if self._closed:
                        return
                    more = self._file(index).advance(bytes_, device)

    @property
    def bytes_(self) -> int:
        """How much memory the images take that were written or reserved here."""
        return sum(slot.bytes_ for slot in self._files.values())

    def write(self, meta: Meta, tree: Tree) -> Path:
        """Write an image and give its path; on an error, the images that were complete stay so."""
        return self._written(meta, tree)[0].path

    def write_copied(self, meta: Meta, tree: Tree) -> tuple[Path, list[HostCopy]]:
        """Write an image, and give where the bytes of each tensor are: until the next one."""
        slot, tensors = self._written(meta, tree)
        return slot.path, slot.copies(tensors)

    def _written(self, meta: Meta, tree: Tree) -> tuple[_StashFile, list[Tensor]]:
        header, manifest, places, tensors = _planned(meta, tree)
        self._writer_waits = True
        with self._turn, torch.no_grad():
            try:
                assert not self._closed
                with self._refusals(header.bytes_):
                    slot, stamp = self._taken()
                try:
                    with self._refusals(header.bytes_):
                        slot.grow(header.bytes_)
                    slot.fill(replace(header, stamp=stamp), manifest, places, tensors)
                finally:
                    slot.unlock()
            finally:
                self._writer_waits = False
                self._turn.notify_all()
        return slot, tensors

    def close(self) -> None:
        """Give back memory and descriptors; the images stay."""
        with self._turn:
            self._closed = True
            for slot in self._files.values():
                slot.close()
            self._files.clear()

    def _taken(self) -> tuple[_StashFile, int]:
        """Lock a slot that is neither the newest image nor read by anyone; give the next stamp."""
        for index in itertools.count():
            slot = self._file(index)
            if slot.path == imagefile.newest_image(self._folder) or not slot.lock():
                continue
            # Only now: another worker may just have finished in this very slot.
            if slot.path != imagefile.newest_image(self._folder):
                known = imagefile.images(self._folder)
                return slot, known[-1][1].stamp + 1 if known else 1
            slot.unlock()
        raise AssertionError

    def _file(self, index: int) -> _StashFile:
        if index not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[index] = _StashFile(self._folder / f"slot-{index}.img")
        return self._files[index]

    @contextmanager
    def _refusals(self, bytes_: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"the job's state can't be kept in {self._folder}",
                f"an image takes {bytes_} bytes and the system refused: {error.strerror}",
                "free memory there, or name another folder",
            ) from error


# --- reading -----------------------------------------------------------------------------------


class ImagePrefetch:
    """Maps and pins the images of a folder for a worker that will soon copy one to its GPU.

    Pinning takes as long as a copy from pageable memory; done ahead, no step waits for it.
    """

    def __init__(self) -> None:
        self._memory: dict[Path, Tensor] = {}

    def open(self, folder: Path, device: torch.device) -> None:
        """Map and pin what is there; for a thread."""
        for path in folder.glob("slot-*.img"):
            with path.open("r+b") as file, suppress(OSError, ValueError):  # ValueError: empty
                memory = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
                if pin(memory, device):
                    self._memory[path] = memory

    def memory(self, path: Path, bytes_: int) -> Tensor | None:
        """Return an image's pinned memory, if it was there and has not grown since."""
        memory = self._memory.get(path)
        return memory if memory is not None and memory.numel() >= bytes_ else None

    def close(self, device: torch.device) -> None:
        """Release all memory; no copy may be under way."""
        for memory in self._memory.values():
            unpin(memory, device)
        self._memory.clear()


class MappedImage(NamedTuple):
    """A mapped image. Its tensors see the file itself: copy from them, and never keep them."""

    meta: Meta
    tree: Tree
    from_gpu: frozenset[int]  # ids of the tensors that lived on a GPU


@contextmanager
def opened(path: Path, ahead: ImagePrefetch | None = None) -> Iterator[MappedImage]:
    """Hold and map an image or a checkpoint; after the context a writer may take the file."""
    with imagefile.held(path) as (fd, header):
        manifest = imagefile.manifest_of(fd, header)
        memory = ahead.memory(path, header.bytes_) if ahead is not None else None
        if memory is None:
            mapped = mmap.mmap(
                fd, header.bytes_, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
            )  # private: torch wants to be able to write, and the file must not change
            memory = torch.frombuffer(mapped, dtype=torch.uint8)
        places = [
            TensorSpec(dtype, tuple(shape), tuple(stride), offset, device)
            for dtype, shape, stride, offset, device in manifest["tensors"]
        ]
        views = [_seen(memory, header.payload_offset, place) for place in places]
        on_gpu = (id(v) for v, p in zip(views, places, strict=True) if p.device == "cuda")
        yield MappedImage(manifest["meta"], unflatten(manifest["tree"], views), frozenset(on_gpu))
