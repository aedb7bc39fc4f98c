"""Events of a run that are no errors, such as an avoided object: logged as warnings, and passed to listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pulse_registry.errors import PulseError

_logger = logging.getLogger("pulse_registry")


class EventKind(StrEnum):
    """What an event is about. Values are only ever added."""

    OBJECT_AVOIDED = "object_avoided"
    """A stored object is gone or damaged; a way around it was taken."""
    FROZEN = "frozen"
    """The newest record is older than the limit that the reader stated."""
    RECORD_MISSING = "record_missing"
    """The log ends before a record that its hint, or a snapshot that nobody had to sign, tells of."""
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
    LAYOUT_CHANGED = "layout_changed"
    """A push has other tensors than the version before it, so that it is stored whole."""
    PUSH_FAILED = "push_failed"
    """A push was not committed; where the trainer may go on, its next push carries the changes."""
    KERNELS_NOT_CACHED = "kernels_not_cached"
    """The kernels are not on disk: this process compiles them, and its first pushes or pulls may wait for it."""
    GPU_NOT_USED = "gpu_not_used"
    """The model is on a GPU on which the kernels do not run: it is worked on in host memory, with the same results."""
    OBJECT_NOT_COPIED = "object_not_copied"
    """The source of a mirror can't give an object whole: the copy ends before the record that names it."""
    ROUND_WAITS = "round_waits"
    """A round of outer steps waits for members, and lacks its quorum; it ends by itself once they have contributed."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run; ``key`` names the stored object that it is about, below the run."""

    kind: EventKind
    run: str
    message: str
    key: str | None = None


Listener = Callable[[Event], None]


class Events:
    """Tells listeners; safe to share between threads. A listener should not wait; what it raises stops nobody."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners
        self._failed: set[tuple[int, EventKind]] = set()

    def tell(self, event: Event, cause: BaseException | None = None) -> None:
        """Log an event as a warning, with the traceback of a cause that is none of our errors, and tell every listener.

        What a listener raises is logged, once for each kind of event: it must not end the pull, or the thread, that
        had something to tell.
        """
        trace = None if isinstance(cause, PulseError) else cause
        _logger.warning("run %s: %s: %s", event.run, event.kind, event.message, exc_info=trace)
        for number, listener in enumerate(self._listeners):
            try:
                listener(event)
            except Exception as error:
                # The edge to code that is not ours.
                if (number, event.kind) not in self._failed:
                    self._failed.add((number, event.kind))
                    _logger.error("run %s: on_event raised at %s", event.run, event.kind, exc_info=error)
