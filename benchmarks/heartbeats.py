"""What heartbeats cost a server: its processor time per beat.

    python -m benchmarks.heartbeats --agents 1000 --json

A server process, and in this process as many agents as asked for, each with a WebSocket of its own.
They only join and beat: in turn, so that each beats as often as the server asks agents to, for
`--seconds`. The processor time of the server is read from the kernel; what it needs while its
agents are silent is subtracted. `round_trip_s` is from a beat to its renewal, over loopback.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.elastic.job import machine
from benchmarks.pool import at
from benchmarks.retention import Served, served
from coddl import __version__
from coddl.agent.server_line import ServerLine, WebSocketDialer
from coddl.api import wire
from coddl.api.jobsfolder import JobsFolder
from coddl.core.pool.records import Device

QUIET_S: Final = 5.0
DIAL_WITHIN_S: Final = 30.0
DEVICES: Final = 8
USE: Final = wire.GpuUse(0.97, 60 << 30)


class BeatingAgent:
    """An agent that only joins and beats."""

    def __init__(self, number: int, line: ServerLine) -> None:
        self._number = number
        self._line = line
        self._beats = 0
        self.beat_every_s = 0.0

    async def join(self, jobs: JobsFolder) -> None:
        """Say hello, and wait until the server has taken the node in."""
        hello = wire.Hello(
            protocol=wire.PROTOCOL,
            version=__version__,
            node=name_of(self._number),
            boot="1",
            host="127.0.0.1",
            port=1,
            peer_token="none",
            devices=tuple(Device(index, "gpu") for index in range(DEVICES)),
            jobs=jobs,
        )
        await self._line.send(wire.encoded(hello))
        while not isinstance(told := wire.from_server(await self._line.receive()), wire.Welcome):
            if isinstance(told, wire.Refused):
                raise RuntimeError(f"{told.what}: {told.because}")
        self.beat_every_s = told.beat_every_s

    async def beat(self) -> float:
        """Beat once; give the time until it is renewed."""
        self._beats += 1
        sent_s = time.perf_counter()
        beat = wire.Beat(number=self._beats, gpus=dict.fromkeys(range(DEVICES), USE))
        await self._line.send(wire.encoded(beat))
        while not isinstance(wire.from_server(await self._line.receive()), wire.Renewed):
            pass  # orders
        return time.perf_counter() - sent_s


def name_of(number: int) -> str:
    """Name a node."""
    return f"node-{number:05}"


async def measured(pool: Served, folder: Path, agents: int, seconds: float) -> dict[str, Any]:
    """Have agents beat for some seconds."""
    dialer = WebSocketDialer(f"{pool.client.base_url}", (folder / "token").read_text().strip())
    boots = {name_of(number): "1" for number in range(agents)}  # a folder that all nodes share
    jobs = JobsFolder(str(folder / "jobs"), "shared", "", 0, boots)
    process = psutil.Process(pool.process.pid)
    async with AsyncExitStack() as stack:
        fleet: list[BeatingAgent] = []
        for number in range(agents):
            line = await dialer.dial(DIAL_WITHIN_S)
            stack.push_async_callback(line.close)
            fleet.append(BeatingAgent(number, line))
            await fleet[-1].join(jobs)
        for each in fleet:  # takes the orders that came meanwhile
            await each.beat()
        quiet_s = busy_s(process)
        await asyncio.sleep(QUIET_S)
        quiet_s = (busy_s(process) - quiet_s) / QUIET_S

        every_s = fleet[0].beat_every_s
        trips_s: list[float] = []

        async def beats(agent: BeatingAgent, begin_s: float) -> None:
            await asyncio.sleep(begin_s)
            until_s = time.perf_counter() + seconds
            while time.perf_counter() < until_s:
                trips_s.append(await agent.beat())
                await asyncio.sleep(every_s)

        before_s, began_s = busy_s(process), time.perf_counter()
        await asyncio.gather(*(beats(a, every_s * i / agents) for i, a in enumerate(fleet)))
        took_s = time.perf_counter() - began_s
        used_s = busy_s(process) - before_s - quiet_s * took_s
    return {
        "agents": agents,
        "beat_every_s": every_s,
        "beats": len(trips_s),
        "beats_per_s": len(trips_s) / took_s,
        "server_cpu_per_beat_s": used_s / len(trips_s),
        "server_cpu_share": (used_s + quiet_s * took_s) / took_s,
        "server_cpu_share_quiet": quiet_s,
        "round_trip_s_p50": statistics.median(trips_s),
        "round_trip_s_p99": at(0.99, trips_s),
        "machine": machine(),
    }


def busy_s(process: psutil.Process) -> float:
    """Give the processor time that a process has had."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.heartbeats", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--agents", type=int, default=1000, help="(1000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which they beat (20)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coddl-bench-") as name, served(Path(name)) as pool:
        found = asyncio.run(measured(pool, Path(name), options.agents, options.seconds))
    shown = "\n".join(f"{key:22} {value}" for key, value in found.items())
    sys.stdout.write(f"{json.dumps(found, indent=2) if options.json else shown}\n")


if __name__ == "__main__":
    main()
