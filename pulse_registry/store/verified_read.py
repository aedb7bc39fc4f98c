"""Verified reads: bytes that fail their check are read again, since they may have been damaged on the way here.

Every read that is checked goes through here, so that an error means what it says: the stored bytes are wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from blake3 import blake3

from pulse_registry.errors import CorruptObject
from pulse_registry.store.base import Store
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.elsewhere import read_elsewhere

TRIES = 5
"""How often bytes are read at most. Of a link that damages one answer in five, 1 read in 3,000 is still refused."""

Data = TypeVar("Data", bytes, memoryview)
Result = TypeVar("Result")
_logger = logging.getLogger(__name__)


def checked(read: Callable[[], Data], check: Callable[[Data], Result], first: Data | None = None) -> Result:
    """Read bytes, check them, and return what the check makes of them; damaged ones are read again at once.

    Where the store has several roots, they are read of another one. That the same damaged bytes come twice is no
    accident of the way: then, too, the error stands.

    Args:
        read: fetches the bytes afresh.
        check: returns what they hold, or raises CorruptObject.
        first: what was read of them already.

    Raises:
        CorruptObject: the store holds other bytes than were committed, as far as can be told.
        Other errors of the two pass at once.
    """
    seen: set[bytes] = set()
    while True:
        answer: Data | None = None
        try:
            if first is None:
                with read_elsewhere(len(seen)):
                    answer = read()
            else:
                answer, first = first, None
            return check(answer)
        except CorruptObject as error:
            mark = blake3(str(error).encode() if answer is None else answer).digest()
            if mark in seen or len(seen) + 1 >= TRIES:
                raise
            seen.add(mark)
            _logger.warning("%s; it is read again", error)


def verified(read: Callable[[], Data], digest: bytes, what: str, first: Data | None = None) -> Data:
    """Read bytes that hash to a BLAKE3; see ``checked``.

    Args:
        read: fetches the bytes afresh.
        digest: the BLAKE3 that they have.
        what: the subject of the error's message, as "KEY: the BLAKE3 of piece 3".
        first: what was read of them already.

    Raises:
        CorruptObject: the store holds other bytes than were committed.
        Other errors of ``read`` pass at once.
    """
    return checked(read, lambda data: _with_digest(digest, what, data), first)


def filled(store: Store, key: str, byte_range: ByteRange, buffer: memoryview) -> memoryview:
    """Read a range of an object into a buffer of its size, and return the buffer."""
    store.get_into(key, byte_range, buffer)
    return buffer


def _with_digest(digest: bytes, what: str, data: Data) -> Data:
    if blake3(data).digest() != digest:
        raise CorruptObject(f"{what} differs from the one committed")
    return data
