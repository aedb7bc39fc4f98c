"""Events: what a run's users should hear of although nothing failed, told to the log and to whoever listens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

_logger = logging.getLogger("pulse_registry")


class EventKind(StrEnum):
    """What an event is about. Values are only ever added."""

    OBJECT_AVOIDED = "object_avoided"
    """A stored object is gone or damaged; a way around it was taken."""
    FROZEN = "frozen"
    """The newest record is older than the limit that the reader stated."""
    LEASE_FAILED = "lease_failed"
    """The store did not take the reader's lease."""
    CACHE_BYPASSED = "cache_bypassed"
    """The node's cache could not be used."""
    COMPACTION_FAILED = "compaction_failed"
    """A merged patch or a keyframe could not be made; it will be tried again."""
    PREFETCH_FAILED = "prefetch_failed"
    """The newest version could not be made ready in the background; it will be tried again."""
    NOT_FINITE = "not_finite"
    """A version holds NaN or infinite cells, and the policy is to warn."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run; ``key`` names the stored object that it is about, below the run."""

    kind: EventKind
    run: str
    message: str
    key: str | None = None


Listener = Callable[[Event], None]


class Events:
    """Tells listeners; safe to share between threads. A listener must not raise and should not wait."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def tell(self, event: Event) -> None:
        """Log an event as a warning, and tell every listener."""
        _logger.warning("run %s: %s: %s", event.run, event.kind, event.message)
        for listener in self._listeners:
            listener(event)
