"""Tells many waiters in one event loop that there is something new, without keeping it for them."""

import asyncio


class Notifier:
    """Rung when something is new; a waiter says how many rings it has heard."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all who wait."""
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait_after(self, count: int) -> None:
        """Wait until it has rung more often than that."""
        if self.count == count:
            await self._next.wait()
