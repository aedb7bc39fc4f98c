"""Waiters for the same event: parked in the event loop, woken together."""

from __future__ import annotations

import asyncio


class Waiters:
    """A set of tasks that wait to be woken; ``len`` says how many."""

    def __init__(self) -> None:
        """Begin with none."""
        self._parked: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._parked)

    async def park(self, seconds: float, gone: asyncio.Task[None] | None = None) -> None:
        """Wait until somebody calls `wake`, the time is over, or ``gone`` is done."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(*_: object) -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._parked[waiter] = None
        timer = loop.call_later(seconds, wake)
        if gone is not None:
            gone.add_done_callback(wake)
        try:
            await waiter
        finally:
            timer.cancel()
            self._parked.pop(waiter, None)
            if gone is not None:
                gone.remove_done_callback(wake)

    def wake(self) -> None:
        """Wake all who wait now."""
        parked, self._parked = self._parked, {}
        for waiter in parked:
            if not waiter.done():
                waiter.set_result(None)
