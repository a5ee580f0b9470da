"""A process group that can be built next to another, waited for with a limit, and dropped.

torch's groups are built by hand here, without `init_process_group`: two generations must be able to
exist at once, and nothing may be global. Every wait ends: with the result, with `Broken`, or
because the caller had to give up.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    ErrorType,
    PrefixStore,
    Store,
    TCPStore,
    Work,
)

CONNECT_TIMEOUT: Final = timedelta(seconds=20)
COLLECTIVE_TIMEOUT: Final = timedelta(minutes=30)  # the watchdog acts long before
# How long a wait goes on before it looks around: twice as long each time, and many times as long as
# a look takes, which may go over the network.
LOOK_AFTER: Final = timedelta(milliseconds=5)
LOOK_EVERY: Final = timedelta(milliseconds=100)
LOOK_PART: Final = 10
POLL_S: Final = 50e-6


class GroupError(Exception):
    """The group can't be used any more: a peer died, or it must be abandoned."""


Backend = Any  # a torch process group; torch's own stubs leave out its collectives


class Group:
    """Collectives among the members of one generation; rank 0 is the oldest."""

    def __init__(self, backend: Backend, rank: int, world: int, store: Store) -> None:
        self.rank = rank
        self.world = world
        self.may_wait: Callable[[], bool] = lambda: True  # asked now and then while it waits
        self._backend = backend
        self._store: Any = store
        self._is_aborted = False
        # NCCL's own wait only orders streams; to learn of a failure the host must look.
        self._polls = backend.name() == "nccl"

    def all_reduce(self, tensor: Tensor) -> Work:
        """Start summing a tensor over all members, in place."""
        return self._started(lambda: self._backend.allreduce([tensor], AllreduceOptions()))

    def all_to_all(
        self, output: Tensor, source: Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> Work:
        """Start sending `sent[r]` elements to each rank r and receiving `received[r]` from it."""
        return self._started(
            lambda: self._backend.alltoall_base(
                output, source, list(received), list(sent), AllToAllOptions()
            )
        )

    def all_gather(self, output: Tensor, mine: Tensor) -> Work:
        """Start collecting the tensors of all members into one, in order of rank."""
        return self._started(
            lambda: self._backend._allgather_base(output, mine, AllgatherOptions())
        )

    def broadcast(self, tensor: Tensor, root: int) -> Work:
        """Start giving all members the root's tensor."""
        options = BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        return self._started(lambda: self._backend.broadcast([tensor], options))

    def send(self, tensor: Tensor, to: int) -> Work:
        """Start sending a tensor to one member, which receives it.

        Wait for it by its own `wait`, not by `finish`: gloo drops the line to a peer when a wait
        for a message runs out.
        """
        return self._started(lambda: self._backend.send([tensor], to, 0))

    def receive(self, tensor: Tensor, from_: int) -> Work:
        """Start receiving what one member sends; waited for as what is sent."""
        return self._started(lambda: self._backend.recv([tensor], from_, 0))

    def finish(self, work: Work, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait for what was started; raises `Broken` when it can't end well.

        Gives False when `unless`, asked now and then, was true first.
        """
        is_over = False
        look = LOOK_AFTER
        while True:
            try:
                if self._polls:
                    deadline = time.monotonic() + look.total_seconds()
                    while not work.is_completed() and time.monotonic() < deadline:
                        time.sleep(POLL_S)
                    if work.is_completed():
                        self._check()
                        work.wait()
                        return True
                    self._check()
                else:
                    work.wait(look)
                    return True
            except RuntimeError as error:
                if is_over or "timed out" not in str(error).lower():
                    raise GroupError(str(error).splitlines()[0]) from error
                # It may have ended well between that wait and this look: wait once more, to know.
                is_over = work.is_completed()
            began_s = time.monotonic()
            if not self.may_wait():
                raise GroupError("told to abandon it")
            if not is_over and unless():
                return False
            took = timedelta(seconds=time.monotonic() - began_s)
            look = min(max(2 * look, LOOK_PART * took), LOOK_EVERY)

    def post(self, note: str) -> None:
        """Leave a note for the other members, which may be waiting elsewhere."""
        self._tried(lambda: self._store.set(note, ""))

    def has(self, note: str) -> bool:
        """Return whether a member has left that note."""
        return bool(self._tried(lambda: self._store.check([note])))

    def remove(self, note: str) -> None:
        """Take a note back."""
        self._tried(lambda: self._store.delete_key(note))

    def _check(self) -> None:
        """Raise `Broken` if a peer of NCCL's is gone: what ended then has not ended well."""
        if self._is_aborted:
            raise GroupError("told to abandon it")
        if (error := self._backend.get_error()) != ErrorType.SUCCESS:
            raise GroupError(f"NCCL says {error.name}")

    def abort(self) -> None:
        """End what hangs on the GPU; for a thread. What waits for it learns that it is broken."""
        if self._polls and not self._is_aborted:
            self._is_aborted = True
            self._backend.abort()

    def drop(self) -> None:
        """End the group; waits for a collective that hangs, so not for the main thread."""
        self.abort()
        self._backend = self._store = None

    def _started(self, start: Callable[[], Any]) -> Work:
        work: Work = self._tried(start)
        return work

    def _tried(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except RuntimeError as error:
            raise GroupError(str(error).splitlines()[0]) from error


def connect(
    store_at: tuple[str, int], name: str, rank: int, world: int, *, backend: str, host: str
) -> Group:
    """Build a group with its peers, all of which are doing the same now; proves that it works."""
    try:
        store = TCPStore(
            *store_at, is_master=False, wait_for_workers=False, timeout=CONNECT_TIMEOUT
        )
        prefixed = PrefixStore(name, store)
        made = (
            _nccl(prefixed, rank, world)
            if backend == "nccl"
            else _gloo(prefixed, rank, world, host)
        )
        group = Group(made, rank, world, prefixed)
        device = "cuda" if backend == "nccl" else "cpu"
        group.finish(group.all_reduce(torch.ones(1, device=device)))
        # All have connected, so none reads this group's keys any more.
        if rank == 0 and hasattr(store, "list_keys"):
            for key in store.list_keys():
                if key.startswith(f"{name}/"):
                    store.delete_key(key)
    except (RuntimeError, GroupError) as error:
        raise GroupError(
            f"group {name} could not be built: {str(error).splitlines()[0]}"
        ) from error
    return group


def _gloo(store: Store, rank: int, world: int, host: str) -> Backend:
    gloo: Any = dist.ProcessGroupGloo  # Any: torch's stubs know no options
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._threads = 2
    options._timeout = CONNECT_TIMEOUT
    made = gloo(store, rank, world, options)
    made._set_default_timeout(COLLECTIVE_TIMEOUT)
    return made


def _nccl(store: Store, rank: int, world: int) -> Backend:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = COLLECTIVE_TIMEOUT
    made = dist.ProcessGroupNCCL(store, rank, world, options)
    made.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    return made
