"""Time and random ids: the real ones, to be passed in, so that tests can pass others."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from pulse_registry.errors import InvalidArgument

Clock = Callable[[], datetime]
NewId = Callable[[], str]


def utc_now() -> datetime:
    """Return the present time, with its zone."""
    return datetime.now(UTC)


def random_id() -> str:
    """Return 128 random bits as 32 hex digits: a new write id."""
    return secrets.token_hex(16)


def timestamp(moment: datetime) -> str:
    """Return ``moment`` as records say it: UTC, in milliseconds (rounded down).

    Raises:
        InvalidArgument: ``moment`` has no time zone, so that it names no moment.
    """
    if moment.tzinfo is None:
        raise InvalidArgument(f"{moment!r} has no time zone")
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
