"""Inspect this node: links between its workers, updates, copies."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from coddl.agent.inspection.hardware import NodeHardware
from coddl.agent.inspection.sweeps import DeviceClass, LinkSweep, SweepExtent, counts_up_to
from coddl.agent.inspection.workers import InspectionWorkers, MeasurementFailed
from coddl.core.speed.inspection import (
    ExchangeTime,
    Inspection,
    LinkClass,
    LinkSpeed,
    SendTime,
    fitted_link,
)
from coddl.runtime.wire import Message

LOOPBACK: Final = "127.0.0.1"

Tell = Callable[[str], None]
Exchange = Callable[[str, int], list[list[float]]]  # what to do, among how many: times of each


def inspect_node(
    node: NodeHardware,
    workers: InspectionWorkers,
    sweeps: Sequence[LinkSweep],
    extent: SweepExtent,
    tell: Tell,
) -> Inspection:
    """Measure all there is; what can't be measured is told and left out."""
    tell("importing torch …")
    began_s = time.monotonic()
    store = workers.store_at(LOOPBACK)
    tell(f"importing torch: {time.monotonic() - began_s:.1f} s")
    links: dict[LinkClass, LinkSpeed] = {}
    for sweep in sweeps:
        try:
            links[sweep.link] = _swept_on_node(workers, store, sweep, extent, tell)
        except MeasurementFailed as failure:
            tell(f"{sweep.link} link: not measured ({failure})")
    rates = _Rates(workers, extent, tell)
    on: tuple[DeviceClass, ...] = ("gpu", "cpu") if node.has_gpus else ("cpu",)
    return Inspection(
        hardware=node.hardware,
        links=links,
        update_gb_s={each: rate for each in on if (rate := rates.update_gb_s(each)) is not None},
        copy_gb_s=rates.copy_gb_s() if node.has_gpus else {},
        suspend_s=rates.suspend_s() if node.has_gpus else None,
    )


def _swept_on_node(
    workers: InspectionWorkers,
    store: tuple[str, int],
    sweep: LinkSweep,
    extent: SweepExtent,
    tell: Tell,
) -> LinkSpeed:
    def exchange(do: str, count: int) -> list[list[float]]:
        requests = {
            member: request_of(do, sweep, extent, store, rank=rank, world=count)
            | {"host": LOOPBACK}
            for rank, member in enumerate(sweep.members[:count])
        }
        return [answer["times"] for answer in workers.ask(requests).values()]

    return swept(sweep, extent, exchange, tell)


def request_of(
    do: str, sweep: LinkSweep, extent: SweepExtent, store: tuple[str, int], *, rank: int, world: int
) -> Message:
    """Give the request to a worker to take part in an exchange, all but its own address."""
    return {
        "do": do,
        "store": store,
        "name": f"{sweep.link}-{do}-{world}",
        "rank": rank,
        "world": world,
        "backend": sweep.backend,
        "on": sweep.on,
        "sizes": extent.sizes_on(sweep.on),
        "within_s": extent.within_s,
    }


def swept(
    sweep: LinkSweep,
    extent: SweepExtent,
    exchange: Exchange,
    tell: Tell,
    *,
    call_s: float | None = None,
) -> LinkSpeed:
    """Measure a link with 2, 3, … of its members, and fit it. The slowest worker's time counts."""
    sizes = extent.sizes_on(sweep.on)
    measured: list[ExchangeTime] = []
    for count in counts_up_to(len(sweep.members)):
        began_s = time.monotonic()
        slowest = [max(each) for each in zip(*exchange("exchange", count), strict=True)]
        measured += [ExchangeTime(count, *each) for each in zip(sizes, slowest, strict=True)]
        took = f"{time.monotonic() - began_s:.1f} s"
        tell(f"{sweep.link} link: {count} workers, {len(sizes)} sizes, {sweep.backend}: {took}")
    sent: list[SendTime] = []
    if (sweep.backend, sweep.on) != ("gloo", "gpu"):  # gloo sends messages from host memory only
        began_s = time.monotonic()
        sent_s = [max(each) for each in zip(*exchange("send", 2), strict=True)]
        sent = [SendTime(*each) for each in zip(sizes, sent_s, strict=True)]
        tell(f"{sweep.link} link: messages: {time.monotonic() - began_s:.1f} s")
    return fitted_link(measured, sweep.backend, sent=sent, call_s=call_s)


class _Rates:
    """What one worker does by itself."""

    def __init__(self, workers: InspectionWorkers, extent: SweepExtent, tell: Tell) -> None:
        self._workers = workers
        self._extent = extent
        self._tell = tell

    def update_gb_s(self, on: DeviceClass) -> float | None:
        bytes_ = self._extent.gpu_update_bytes if on == "gpu" else self._extent.update_bytes
        answer = self._asked(f"update on {on}", {"do": "update", "bytes": bytes_, "on": on})
        return None if answer is None else answer["gb_s"]

    def copy_gb_s(self) -> dict[str, float]:
        answer = self._asked("copies", {"do": "copy"}) or {}
        return {way: answer[way] for way in ("to_host", "from_host") if way in answer}

    def suspend_s(self) -> float | None:
        answer = self._asked("suspension", {"do": "suspend"})
        return None if answer is None else answer["seconds"]

    def _asked(self, what: str, request: Message) -> Message | None:
        began_s = time.monotonic()
        try:
            answer = self._workers.ask({0: {**request, "within_s": self._extent.within_s}})[0]
        except MeasurementFailed as failure:
            self._tell(f"{what}: not measured ({failure})")
            return None
        self._tell(f"{what}: {time.monotonic() - began_s:.1f} s")
        return answer
