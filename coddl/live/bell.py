"""Tells many waiters in one event loop that there is something new, without keeping it for them."""

import asyncio


class Bell:
    """Rung when something is new; a waiter says how many rings it has heard."""

    def __init__(self) -> None:
        self.rings = 0
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait."""
        self.rings += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, rings: int) -> None:
        """Wait until it has rung more often than that."""
        if self.rings == rings:
            await self._next.wait()
