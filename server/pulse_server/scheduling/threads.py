"""Calls of the store, from the event loop into threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from pulse_registry.errors import AccessDenied, StoreUnavailable
from pulse_server.scheduling.turns import CALLER, Turns

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(pool: Executor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of a pool.

    Raises:
        StoreUnavailable: also where the store does not allow it, which is about the service's keys, not the caller's.
        Other errors of the function pass.
    """
    return await asyncio.get_running_loop().run_in_executor(pool, calling, partial(function, *args, **kwargs))


def calling(function: Callable[[], T]) -> T:
    """Call a function, in a thread.

    Raises:
        As `in_thread`.
    """
    try:
        return function()
    except AccessDenied as error:
        raise StoreUnavailable(f"the store does not allow the service this; check its credentials: {error}") from error


async def in_turn(turns: Turns, pool: Executor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of a pool as `in_thread` does, when it is this caller's turn.

    Whoever goes away meanwhile leaves a thread at work, and so keeps the place until that has ended.
    """
    caller = CALLER.get()
    await turns.take(caller)
    called = asyncio.ensure_future(in_thread(pool, function, *args, **kwargs))

    def done(called: asyncio.Future[T]) -> None:
        turns.release(caller)
        if not called.cancelled():
            called.exception()  # looked at here, too, since the caller may have gone

    called.add_done_callback(done)
    return await asyncio.shield(called)


class Calls:
    """Threads for calls of the store, of which each caller has a share."""

    def __init__(self, name: str, threads: int, each: int) -> None:
        """Begin with no threads; ``each`` is how many a caller has at a time."""
        self._pool, self._turns = ThreadPoolExecutor(threads, name), Turns(threads, each)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what may ask the store, in a thread, when it is this caller's turn. Raises as `in_thread`."""
        return await in_turn(self._turns, self._pool, function, *args, **kwargs)

    def close(self) -> None:
        """End the threads; calls that wait are cancelled."""
        self._pool.shutdown(cancel_futures=True)
