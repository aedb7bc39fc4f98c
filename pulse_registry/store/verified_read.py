"""Reading again: bytes that fail their check may have been damaged on the way here, not in the store.

Every read that is checked goes through ``checked``, so that an error means what it says: the stored bytes are wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from blake3 import blake3

from pulse_registry.errors import CorruptObject, PulseError

TRIES = 5
"""How often bytes are read at most. Of a link that damages one answer in five, 1 read in 3,000 is still refused."""

Data = TypeVar("Data", bytes, memoryview)
Result = TypeVar("Result")
_logger = logging.getLogger(__name__)


@contextmanager
def about(key: str) -> Iterator[None]:
    """Let errors of a block say which stored object they are about, unless they know better: see ``PulseError.key``."""
    try:
        yield
    except PulseError as error:
        if error.key is None:
            error.key = key
        raise


def checked(read: Callable[[], Data], check: Callable[[Data], Result]) -> Result:
    """Read bytes, check them, and return what the check makes of them; damaged ones are read again at once.

    That the same damaged bytes come twice is no accident of the way: then, too, the error stands.

    Args:
        read: fetches the bytes afresh.
        check: returns what they hold, or raises CorruptObject.

    Raises:
        CorruptObject: the store holds other bytes than were committed, as far as can be told.
        Other errors of the two pass at once.
    """
    seen: set[bytes] = set()
    while True:
        answer: Data | None = None
        try:
            answer = read()
            return check(answer)
        except CorruptObject as error:
            mark = blake3(str(error).encode() if answer is None else answer).digest()
            if mark in seen or len(seen) + 1 >= TRIES:
                raise
            seen.add(mark)
            _logger.warning("%s; it is read again", error)
