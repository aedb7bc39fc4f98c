"""An executor without threads: each call is done before it is handed out, so that a test sees every moment of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from pulse_registry.errors import PulseError


class Inline(Executor):
    """Runs each call in the caller's thread, at once; ``around`` is called before and after it."""

    def __init__(self, around: Callable[[], None] = lambda: None) -> None:
        self._around = around

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return what a call gave or raised."""
        future: Future[Any] = Future()
        self._around()
        try:
            future.set_result(function(*args, **kwargs))
        except (ArithmeticError, LookupError, PulseError) as error:
            future.set_exception(error)
        self._around()
        return future
