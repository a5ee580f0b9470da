"""Wakes all waiters of one event loop when something is new; keeps no messages."""

import asyncio


class Notifier:
    """Counts notifications; a waiter names the last one it has seen."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters."""
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait_after(self, count: int) -> None:
        """Wait until there have been more notifications than `count`."""
        if self.count == count:
            await self._next.wait()
