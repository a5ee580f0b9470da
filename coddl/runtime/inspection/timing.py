"""Time what trainings do: exchanges among workers, updates, copies. Medians, after a warm-up."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from coddl.runtime.worker.group import Group
from coddl.runtime.worker.offload import Offload
from coddl.runtime.worker.pinned import SLICE_BYTES, HostBuffer

ROUNDS: Final = 3  # through the sizes of a sweep
MOST: Final = 100  # repetitions of a size in a round
TENSORS: Final = 16  # that the parameters of an update are cut into
ADAM_COPIES: Final = 3  # a parameter and its two averages
SUSPENDED_BYTES: Final = 10**9
BYTES_MAX: Final = 4 << 30  # of one exchange


def exchange_times(
    group: Group, sizes: Sequence[int], device: torch.device, within_s: float
) -> list[float]:
    """Seconds of an all-reduce of each size; `within_s`: about how long each is repeated."""

    def exchange(part: Tensor) -> None:
        group.finish(group.all_reduce(part))

    return _swept(exchange, group, sizes, device, within_s)


def send_times(
    group: Group, sizes: Sequence[int], device: torch.device, within_s: float
) -> list[float]:
    """Seconds of a message of each size between two workers: half of the way there and back."""

    def there_and_back(part: Tensor) -> None:
        for sender in (0, 1):
            if group.rank == sender:
                group.send(part, 1 - sender).wait()
            else:
                group.receive(part, sender).wait()

    return [each / 2 for each in _swept(there_and_back, group, sizes, device, within_s)]


def update_gb_s(bytes_: int, device: torch.device, within_s: float) -> float:
    """Parameters and state that Adam updates a second, for so many bytes of parameters."""
    parameters = [_filled(bytes_ // TENSORS, device).requires_grad_() for _ in range(TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.01)
    optimizer = torch.optim.Adam(parameters)

    def step() -> None:
        optimizer.step()

    return ADAM_COPIES * bytes_ * 1e-9 / _median_s(step, device, within_s)


def copy_gb_s(device: torch.device, within_s: float) -> dict[str, float]:
    """Bytes a second between a GPU and pinned host memory, each way."""
    on_gpu = torch.zeros(SLICE_BYTES, dtype=torch.uint8, device=device)
    buffer = HostBuffer(device)
    on_host = buffer.grown(SLICE_BYTES)
    ways = {"to_host": (on_host, on_gpu), "from_host": (on_gpu, on_host)}
    found = {}
    for name, (target, source) in ways.items():

        def copy(target: Tensor = target, source: Tensor = source) -> None:
            target.copy_(source, non_blocking=True)

        found[name] = SLICE_BYTES * 1e-9 / _median_s(copy, device, within_s)
    buffer.close()
    return found


def suspend_s(device: torch.device) -> float:
    """Seconds in which 1 GB of tensors leave a GPU and come back, as those of parked workers do.

    The first time, which allocates and pins the host memory, does not count: it is kept.
    """
    tensors = [torch.zeros(SUSPENDED_BYTES // 4, device=device)]
    offload = Offload(device)
    rounds = []
    for _ in range(1 + ROUNDS):
        began_s = time.perf_counter()
        offload.move_out([], tensors)
        offload.move_back()
        rounds.append(time.perf_counter() - began_s)
    return statistics.median(rounds[1:])


def _filled(bytes_: int, device: torch.device) -> Tensor:
    """Memory that is really there: zeros that were never written may be one page."""
    return torch.empty(_elements(bytes_), device=device).fill_(0.0)


def _elements(bytes_: int) -> int:
    return max(1, bytes_ // 4)


def _swept(
    action: Callable[[Tensor], None],
    group: Group,
    sizes: Sequence[int],
    device: torch.device,
    within_s: float,
) -> list[float]:
    """Median seconds of something that all members of a group do with each size.

    The sizes are gone through several times, so that what disturbs the machine for a moment does
    not hit all repetitions of one size.
    """
    buffer = _filled(max(sizes), device)
    parts = [buffer[: _elements(bytes_)] for bytes_ in sizes]
    found: list[list[float]] = [[] for _ in sizes]
    for _ in range(ROUNDS):
        for part, times in zip(parts, found, strict=True):
            action(part)  # the memory, and the peers, are warm then
            times.append(_timed(partial(action, part), device))
            once_s = torch.tensor([times[-1]], device=device)
            group.finish(group.all_reduce(once_s))
            # What takes longer than it may is done no more often: slow links are slow enough.
            count = _repetitions(once_s.item() / group.world, within_s / ROUNDS) - 1
            times += [_timed(partial(action, part), device) for _ in range(count)]
    return [statistics.median(times) for times in found]


def _median_s(action: Callable[[], None], device: torch.device, within_s: float) -> float:
    """Median seconds of something that this worker does by itself."""
    action()
    count = ROUNDS * _repetitions(_timed(action, device), within_s / ROUNDS)
    return statistics.median(_timed(action, device) for _ in range(count))


def _repetitions(once_s: float, within_s: float) -> int:
    return min(max(1, int(within_s / max(once_s, 1e-9))), MOST)


def _timed(action: Callable[[], None], device: torch.device) -> float:
    began_s = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began_s
