"""Defects that an audit finds, in words for the person who has to restore the run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pulse_registry.errors import NotFound, PulseError, UnsupportedFormat, Untrusted

RESTORE: Final = "restore it from the bucket's versioning or a backup"


class DefectKind(StrEnum):
    """How a stored object is not what it must be. Values are only ever added."""

    MISSING = "missing"
    DAMAGED = "damaged"
    UNTRUSTED = "untrusted"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Defect:
    """One stored object that is not there, or is not what was committed.

    Attributes:
        key: its key, below the run.
        kind: what is wrong with it.
        found: the same in a sentence.
        remedy: what makes it right again.
    """

    key: str
    kind: DefectKind
    found: str
    remedy: str = RESTORE

    @classmethod
    def of(cls, key: str, error: PulseError, remedy: str = RESTORE) -> Defect:
        """Return what an error says of an object."""
        match error:
            case NotFound():
                return cls(key, DefectKind.MISSING, "it is not there", remedy)
            case Untrusted():
                return cls(key, DefectKind.UNTRUSTED, str(error), f"find out who wrote it, then {remedy}")
            case UnsupportedFormat():
                return cls(key, DefectKind.UNSUPPORTED, str(error), "look at it with the release that wrote it")
        return cls(key, DefectKind.DAMAGED, str(error), remedy)
