"""The random streams of a process: captured, put back, borrowed for a while, seeded anew."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from coddl.runtime.vnodes import seed_of

Streams = dict[str, Any]  # a tree of tensors and plain values, as `image` keeps them


def capture(generator: torch.Generator | None = None) -> Streams:
    """Return the state of the streams that data loading draws from."""
    streams: Streams = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, at, has_gauss, gauss = numpy.random.get_state()
        streams["numpy"] = (kind, torch.from_numpy(keys.astype("int64")), at, has_gauss, gauss)
    if generator is not None:
        streams["generator"] = generator.get_state()
    return streams


def capture_all() -> Streams:
    """Return the state of all streams of this process, the GPU's as well."""
    streams = capture()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        streams["cuda"] = torch.cuda.get_rng_state()
    return streams


def restore(streams: Streams, generator: torch.Generator | None = None) -> None:
    """Put captured streams back."""
    torch.set_rng_state(_own(streams["torch"]))
    version, keys, gauss = streams["python"]
    random.setstate((version, tuple(keys), gauss))
    if "numpy" in streams and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, at, has_gauss, gauss = streams["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), at, has_gauss, gauss))
    if generator is not None and "generator" in streams:
        generator.set_state(_own(streams["generator"]))
    if "cuda" in streams and torch.cuda.is_available():
        torch.cuda.set_rng_state(_own(streams["cuda"]))


def _own(state: Tensor) -> Tensor:
    return state.detach().cpu().clone()


@contextmanager
def borrowed(streams: Streams, generator: torch.Generator | None) -> Iterator[None]:
    """Draw from captured streams meanwhile; they are brought up to date at the end.

    A loader's own generator is left where the drawing has brought it: only the loader uses it.
    """
    mine = capture()
    restore(streams, generator)
    try:
        yield
    finally:
        streams.update(capture(generator))
        restore(mine)


def own_generator(*, moves: bool) -> torch.Generator:
    """Return a generator seeded from this process's stream, which moves on by that or does not."""
    before = torch.get_rng_state()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    if not moves:
        torch.set_rng_state(before)
    return torch.Generator().manual_seed(seed)


def reseed(*parts: int) -> None:
    """Begin streams of this worker's own, so that its dropout masks are not another's."""
    seed = seed_of(*parts)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
