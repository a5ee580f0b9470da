"""A worker of `coddl inspect`: the script that the fork server runs. One request, one answer.

| request | answer |
|---|---|
| exchange, send: store, name, rank, world, backend, host, sizes, within_s | times |
| update: bytes, within_s, on | gb_s |
| copy: within_s | to_host, from_host |
| suspend | seconds |

A request that can't be carried out is answered with `failed`, because.
"""

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Final

import torch

from coddl.runtime.inspection import timing
from coddl.runtime.wire import Message, encoded
from coddl.runtime.worker.group import Group, GroupError, connect


def main() -> None:
    """Answer requests until the client hangs up."""
    wire = socket.socket(fileno=int(os.environ.pop("CODDL_SOCKET")))
    with wire, wire.makefile("rb") as requests:
        for line in requests:
            wire.sendall(encoded(answered(json.loads(line))))


def answered(request: Message) -> Message:
    """Do what is asked; a failure is an answer, too."""
    try:
        return {"is": request["do"], **ACTIONS[request["do"]](request)}
    except (RuntimeError, GroupError) as error:  # of which CUDA's, out of memory too, are
        lines = str(error).splitlines()
        return {"is": "failed", "because": lines[0] if lines else type(error).__name__}


def _exchange(request: Message) -> Message:
    return _in_group(request, timing.exchange_times)


def _send(request: Message) -> Message:
    return _in_group(request, timing.send_times)


def _in_group(request: Message, times: Callable[..., list[float]]) -> Message:
    """Build a group as workers of a training do, and have something timed in it."""
    sizes = [min(int(each), timing.BYTES_MAX) for each in request["sizes"]]
    group: Group = connect(
        (request["store"][0], request["store"][1]),
        request["name"],
        request["rank"],
        request["world"],
        backend=request["backend"],
        host=request["host"],
    )
    try:
        return {"times": times(group, sizes, _device(request["on"]), request["within_s"])}
    finally:
        group.drop()


def _update(request: Message) -> Message:
    device = _device(request["on"])
    return {"gb_s": timing.update_gb_s(request["bytes"], device, request["within_s"])}


def _copy(request: Message) -> Message:
    return {**timing.copy_gb_s(_device("gpu"), request["within_s"])}


def _suspend(_request: Message) -> Message:
    return {"seconds": timing.suspend_s(_device("gpu"))}


def _device(on: str) -> torch.device:
    return torch.device("cuda", 0) if on == "gpu" else torch.device("cpu")


ACTIONS: Final[dict[str, Callable[[Message], dict[str, Any]]]] = {
    "exchange": _exchange,
    "send": _send,
    "update": _update,
    "copy": _copy,
    "suspend": _suspend,
}

if __name__ == "__main__":
    main()
