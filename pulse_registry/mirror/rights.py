"""What a mirror may do to each key of a copy; a service holds those to it who have no keys of the bucket. Pure names.

Records, objects and layouts are created, and never written over; what only saves readers time is replaced; what the
source has retired, and what is damaged, is deleted. `deploy/iam/mirror.json` says the same to a bucket.
"""

from __future__ import annotations

import re
from enum import Flag, auto
from typing import Final

from pulse_registry.format import keys


class Right(Flag):
    """What may be done to a key."""

    NONE = 0
    CREATE = auto()
    REPLACE = auto()
    DELETE = auto()


_NUMBER: Final = "[0-9]{12}"
_RIGHTS: Final = tuple(
    (re.compile(pattern, re.ASCII), right)
    for pattern, right in (
        (rf"(outer/)?log/{_NUMBER}\.json|mirror", Right.CREATE),
        (r"layouts/[0-9a-f]{64}\.json", Right.CREATE | Right.DELETE),
        (rf"(outer/)?log/snapshots/{_NUMBER}\.json", Right.CREATE | Right.DELETE),
        (rf"(outer/)?head|log/countersigned/{_NUMBER}\.json|(outer/)?clock", Right.REPLACE),
        (r"leases/[A-Za-z0-9][A-Za-z0-9._:-]{0,159}\.json", Right.DELETE),
    )
)
"""But for objects and segments, whose keys `keys` knows."""


def right_of(key: str) -> Right:
    """Return what a mirror may do to a key below the run."""
    if keys.is_object_key(key) or keys.outer_object(key.removeprefix(keys.OUTER)) is not None:
        return Right.CREATE | Right.DELETE
    if keys.segment_of(key) is not None:
        return Right.CREATE | Right.DELETE
    return next((right for pattern, right in _RIGHTS if pattern.fullmatch(key)), Right.NONE)
