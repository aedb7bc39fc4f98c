"""Calls of the store, from the event loop into threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

from pulse_registry.errors import AccessDenied, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(pool: Executor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of a pool.

    Raises:
        StoreUnavailable: also where the store does not allow it, which is about the service's keys, not the caller's.
        Other errors of the function pass.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *args, **kwargs))
    except AccessDenied as error:
        raise StoreUnavailable(f"the store does not allow the service this; check its credentials: {error}") from error
