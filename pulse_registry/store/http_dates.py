"""Times in HTTP headers: how long a server asks to wait (``Retry-After``), and dates, as RFC 9110 has them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

LONGEST_S: Final = 3600.0


def seconds_asked(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds an answer asks to wait, from 0 to an hour; None where it does not, or makes no sense.

    Args:
        headers: of the answer, with names in lower case, or whatever their case is. A date counts from that of the
            answer, by the server's own clock.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:18]), LONGEST_S)
    until = http_date(text)
    if until is None:
        return None
    now = http_date(headers.get("date", "")) or datetime.now(UTC)
    return min(max(0.0, (until - now).total_seconds()), LONGEST_S)


def http_date(text: str) -> datetime | None:
    """Return the time that a header says, in UTC; None where it is none, or none that Python can hold."""
    try:
        found = parsedate_to_datetime(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
