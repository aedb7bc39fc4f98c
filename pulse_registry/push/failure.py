"""Failure of a push: how it is told, and the error of the pushes that it took along."""

from __future__ import annotations

from pulse_registry.errors import Conflict, Fenced, PeerLost, PulseError
from pulse_registry.events import Event, EventKind, Events


def tell_failed(events: Events, run: str, step: int, error: BaseException) -> None:
    """Tell of a push that was not committed."""
    message = str(error) if isinstance(error, PulseError) else repr(error)
    if not message.startswith(_not_pushed(step)):
        carried = "" if isinstance(error, Fenced | PeerLost) else ". The next push carries its changes"
        message = f"{_not_pushed(step)}: {message}{carried}"
    events.tell(Event(EventKind.PUSH_FAILED, run, message))


def taken_along(step: int, why: BaseException | None) -> PulseError:
    """Return the error of a push that one before it took along, which failed of ``why``."""
    cause = why if isinstance(why, PulseError) else Conflict(repr(why))
    message = f"{_not_pushed(step)}, since a push before it failed: {cause}. The next push carries its changes"
    return PeerLost(message, cause.ranks) if isinstance(cause, PeerLost) else type(cause)(message)


def _not_pushed(step: int) -> str:
    return f"step {step} was not pushed"
