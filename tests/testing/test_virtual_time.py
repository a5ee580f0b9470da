"""Processes in virtual time: clocks that are wrong, and processes that are stopped and killed."""

import asyncio

import pytest

from coddl.testing.full_system.virtual_time import (
    Endless,
    SimulatedProcess,
    Skew,
    VirtualTime,
)

EXACT = Skew()


def process_of(time: VirtualTime, skew: Skew = EXACT) -> SimulatedProcess:
    def on_error(_process: SimulatedProcess, error: BaseException) -> None:
        raise error

    return SimulatedProcess("p", time, skew, on_error)


class Ticker:
    """Notes the time of the world every second of its own."""

    def __init__(self, time: VirtualTime, process: SimulatedProcess) -> None:
        self.ticks: list[float] = []
        self._time = time
        process.spawn(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.ticks.append(round(self._time.now_s, 3))


def tidy(time: VirtualTime, process: SimulatedProcess) -> None:
    process.bury()
    time.run_ready()
    process.close()


def test_time_passes_at_once_and_a_fast_clock_sleeps_less() -> None:
    time = VirtualTime()
    process = process_of(time, Skew(wall_s=-5.0, rate=2.0))
    ticker = Ticker(time, process)
    time.run(2.0)
    assert ticker.ticks == [0.5, 1.0, 1.5, 2.0]
    assert process.world_s(process.steady_s()) == pytest.approx(2.0)
    assert process.wall_s() == pytest.approx(1_700_000_000.0 + 4.0 - 5.0)
    tidy(time, process)


def test_what_is_due_while_a_process_is_stopped_happens_when_it_goes_on() -> None:
    time = VirtualTime()
    process = process_of(time)
    ticker = Ticker(time, process)
    time.call_at(1.5, process.stop)
    time.call_at(4.25, process.proceed)
    time.run(6.0)
    assert ticker.ticks == [1.0, 4.25, 5.25]
    tidy(time, process)


def test_a_system_call_keeps_a_process_and_its_clock_shows_when_it_returned() -> None:
    time = VirtualTime()
    process = process_of(time)
    told: list[float] = []

    async def work() -> None:
        before_s = process.steady_s()
        process.block(3.0)
        told.append(process.steady_s() - before_s)
        await asyncio.sleep(0.0)
        told.append(time.now_s)

    process.spawn(work())
    time.run(10.0)
    assert told == [3.0, 3.0]
    tidy(time, process)


def test_a_killed_process_does_nothing_more_and_tidies_nothing_up() -> None:
    time = VirtualTime()
    process = process_of(time)
    ticker = Ticker(time, process)
    deaths: list[float] = []
    process.on_death(lambda: deaths.append(time.now_s))
    time.call_at(2.5, process.kill)
    time.run(9.0)
    assert (ticker.ticks, deaths) == ([1.0, 2.0], [2.5])
    tidy(time, process)
    assert ticker.ticks == [1.0, 2.0]


def test_a_process_can_die_at_any_of_its_callbacks() -> None:
    for count in range(4):
        time = VirtualTime()
        process = process_of(time)
        ran: list[int] = []
        for number in range(4):
            process.loop.call_soon(ran.append, number)
        process.die_after(count)
        time.run(1.0)
        assert ran == [*range(count)]
        tidy(time, process)


def test_callbacks_that_never_wait_are_told_of() -> None:
    time = VirtualTime()
    process = process_of(time)

    def again() -> None:
        process.loop.call_soon(again)

    again()
    with pytest.raises(Endless, match="there are more"):
        time.run(1.0)
    process.close()
