"""The workers of a run, as a service lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pulse_schemas.api import WorkerBody


@runtime_checkable
class ListsWorkers(Protocol):
    """A gateway that tells which workers a run has."""

    def workers(self, run: str) -> tuple[WorkerBody, ...]:
        """Return the workers that reported of late, by name."""
        ...
