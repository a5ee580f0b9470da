"""The network between nodes: takes packets from one node's device, and gives them to another's.

    python -m benchmarks.estimates.relay SPACE …

Each namespace gets a TUN device, `net0`; the node of the n-th has an address that ends in n. Every
packet waits for the latency of the link before it is given on. Packets are as large as TCP makes
them (segmentation is offloaded to these devices, as it is to network cards): fewer have to be
handled. Requests are JSON lines, one answer each:

| request | answer |
|---|---|
| latency_s | ready |
| (empty) | cpu_s, packets, bytes: since the start |

It ends, and the devices with it, when its input ends.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

DEVICE: Final = b"net0"
CLONE_NEWNET: Final = 0x40000000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
HEADER: Final = 10  # bytes of `struct virtio_net_hdr` before each packet
LAST_OF_TARGET: Final = HEADER + 19  # the last byte of an IPv4 packet's target
IPV4: Final = 4
PACKET_BYTES: Final = HEADER + (1 << 16)
AT_ONCE: Final = 64  # packets of a device, before others have their turn


def enter(space: str) -> None:
    """Have the calling thread live in a namespace from now on."""
    with (Path("/run/netns") / space).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"{space} can't be entered")


def opened(space: str) -> int:
    """Make the device of a namespace; it is gone when its descriptor is closed."""
    enter(space)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    request = struct.pack("16sH22x", DEVICE, IFF_TUN | IFF_NO_PI | IFF_VNET_HDR)
    fcntl.ioctl(device, TUNSETIFF, request)
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return device


class Relay:
    """Gives packets on, each when it is due."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._devices = devices
        self._latency_s = 0.0
        self._waiting: deque[tuple[float, int, bytearray, int]] = (
            deque()
        )  # when due, where to, size
        self._free: list[bytearray] = []  # memory for packets
        self._packets = self._bytes = 0

    def run(self) -> None:
        """Serve until the input ends."""
        watched = [sys.stdin.fileno(), *self._devices]
        while True:
            within_s = None
            if self._waiting:
                within_s = max(0.0, self._waiting[0][0] - time.monotonic())
            ready, _, _ = select.select(watched, [], [], within_s)
            for each in ready:
                if each != watched[0]:
                    self._take(each)
                elif not (line := sys.stdin.readline()):
                    return
                else:
                    print(json.dumps(self._answer(json.loads(line))), flush=True)
            self._give()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "latency_s" in request:
            self._latency_s = float(request["latency_s"])
            return {"is": "ready"}
        return {"cpu_s": time.process_time(), "packets": self._packets, "bytes": self._bytes}

    def _take(self, device: int) -> None:
        for _ in range(AT_ONCE):
            packet = self._free.pop() if self._free else bytearray(PACKET_BYTES)
            try:
                length = os.readv(device, [packet])
            except BlockingIOError:
                self._free.append(packet)
                return
            if packet[HEADER] >> 4 == IPV4 and 0 < packet[LAST_OF_TARGET] <= len(self._devices):
                to = self._devices[packet[LAST_OF_TARGET] - 1]
                due_s = time.monotonic() + self._latency_s
                self._waiting.append((due_s, to, packet, length))

    def _give(self) -> None:
        now_s = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now_s:
            _, to, packet, length = self._waiting.popleft()
            self._packets += 1
            self._bytes += length - HEADER
            with contextlib.suppress(OSError):  # its queue is full: a packet is lost, as elsewhere
                os.write(to, memoryview(packet)[:length])
            self._free.append(packet)


def main() -> None:
    """Make the devices, say so, and serve."""
    # A switch does not wait for a core: nor does what stands for it, as far as we may say so.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    devices = [opened(space) for space in sys.argv[1:]]
    print(json.dumps({"is": "ready"}), flush=True)
    Relay(devices).run()


if __name__ == "__main__":
    main()
