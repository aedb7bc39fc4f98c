"""Rule for keys: one for all stores, so that what one of them holds fits into every other.

Keys are relative paths with '/' between segments. The bounds are those of the narrowest store: 1,024 bytes a
key (S3), 255 bytes a segment (file names).
"""

from __future__ import annotations

import re
from typing import Final

from pulse_registry.errors import InvalidArgument

TEMP_PREFIX: Final = ".pulse-tmp-"
"""File names that begin so are half-written objects: never a key, never listed."""

MAX_KEY_BYTES: Final = 1024
MAX_SEGMENT_BYTES: Final = 255

# Control characters (C0, DEL, C1), the backslash, and surrogates, which have no UTF-8 form.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\\\\\ud800-\udfff]")

# What nearly all keys are. Where they are short, nothing is wrong with them: listings ask it of each name.
_PLAIN: Final = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)


def check_key(key: str) -> None:
    """Check that a string is a valid key.

    A valid key is relative, has segments joined by '/', none of them empty, '.', '..', longer than 255 bytes
    of UTF-8 or beginning with TEMP_PREFIX, no control character, no backslash, and at most 1,024 bytes.

    Raises:
        InvalidArgument: it is not; the message says why.
    """
    problem = key_problem(key)
    if problem is not None:
        raise InvalidArgument(f"key {_shown(key)} {problem}")


def check_prefix(prefix: str) -> None:
    """Check that a key may begin with this string; "" is the beginning of all.

    Raises:
        InvalidArgument: no valid key can.
    """
    folder, slash, start = prefix.rpartition("/")
    problem = key_problem(folder) if slash else None
    if problem is None and start:
        problem = _text_problem(start, MAX_SEGMENT_BYTES)
        if problem is None and start.startswith(TEMP_PREFIX):
            problem = f"has a segment that begins with {TEMP_PREFIX!r}, which marks half-written objects"
    if problem is not None:
        raise InvalidArgument(f"prefix {_shown(prefix)} {problem}")


def key_problem(key: str) -> str | None:
    """Return what makes a string no valid key, as the end of a sentence; None if it is one."""
    if len(key) <= MAX_SEGMENT_BYTES and _PLAIN.fullmatch(key):
        return None
    if not key:
        return "is empty"
    if key.startswith("/"):
        return "begins with '/': keys are relative"
    problem = _text_problem(key, MAX_KEY_BYTES)
    if problem is not None:
        return problem
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            return f"has the segment {segment!r}"
        if segment.startswith(TEMP_PREFIX):
            return f"has a segment that begins with {TEMP_PREFIX!r}, which marks half-written objects"
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"has a segment of more than {MAX_SEGMENT_BYTES} bytes"
    return None


def _text_problem(text: str, max_bytes: int) -> str | None:
    """Return what makes a string no valid part of a key, or None."""
    found = _FORBIDDEN.search(text)
    if found is not None:
        return f"has the character {found.group()!a} at {found.start()}, which no key may hold"
    if len(text.encode()) > max_bytes:
        return f"is longer than {max_bytes} bytes"
    return None


def _shown(text: str) -> str:
    """Return a string as messages show it: quoted, escaped, cut."""
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."
