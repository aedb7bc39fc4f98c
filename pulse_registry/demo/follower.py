"""Following a run: the next version is staged while the model serves, and applied between two batches.

This is the pattern for a rollout worker. ``stage`` fetches, decodes and checks without touching the weights; ``apply``
writes the changed cells in place, which takes milliseconds.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from pulse_registry import PullResult, Registry, Staged


class Follower:
    """Keeps a model's live weights near the newest version of a run. A context manager that ends its thread."""

    def __init__(self, registry: Registry, model: Any) -> None:
        self._registry = registry
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stage")
        self._next: Future[Staged] | None = None
        self.version: int | None = None

    def catch_up(self) -> PullResult:
        """Bring the weights to the newest version, and wait for it."""
        self._drop()
        return self._now_at(self._registry.pull("latest", into=self._model))

    def refresh(self) -> PullResult | None:
        """Apply the version that is staged, if one is, and begin to stage a newer one. Call it between batches."""
        applied = None
        if self._next is not None and self._next.done():
            with self._next.result() as staged:
                applied = self._now_at(staged.apply())
            self._next = None
        if self._next is None and self._registry.version("latest").version != self.version:
            self._next = self._thread.submit(self._registry.stage, "latest", into=self._model)
        return applied

    def close(self) -> None:
        """Drop what is staged. Idempotent."""
        self._drop()
        self._thread.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _now_at(self, result: PullResult) -> PullResult:
        self.version = result.version
        return result

    def _drop(self) -> None:
        if self._next is not None:
            self._next.result().discard()
            self._next = None
