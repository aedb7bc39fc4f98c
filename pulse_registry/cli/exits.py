"""Exit codes: one table from the error tree to what a script sees."""

from __future__ import annotations

from typing import Final

from pulse_registry.errors import (
    AccessDenied,
    AlreadyExists,
    BaseMismatch,
    Behind,
    Conflict,
    CorruptObject,
    Diverged,
    Fenced,
    Forked,
    Gone,
    InvalidArgument,
    InvalidModel,
    LayoutMismatch,
    Mirrored,
    NotFound,
    PeerLost,
    PulseError,
    QuorumLost,
    StoreUnavailable,
    UnsupportedFormat,
    Untrusted,
)

UNEXPECTED: Final = 1
USAGE: Final = 2
UNSAFE: Final = 9  # what pulse doctor says of a store; no error stands behind it
EXIT_CODES: Final[dict[type[PulseError], int]] = {
    InvalidArgument: USAGE,
    NotFound: 3,
    Gone: 3,
    AlreadyExists: 4,
    Conflict: 4,
    Fenced: 4,
    Mirrored: 4,
    Forked: 4,
    BaseMismatch: 5,
    InvalidModel: 5,
    LayoutMismatch: 5,
    Diverged: 5,
    CorruptObject: 6,
    UnsupportedFormat: 6,
    StoreUnavailable: 7,
    Behind: 7,
    PeerLost: 7,
    QuorumLost: 7,
    AccessDenied: 8,
    Untrusted: 10,
}
MEANINGS: Final[dict[int, str]] = {
    0: "done",
    UNEXPECTED: "unexpected: a defect; PULSE_DEBUG=1 shows where",
    USAGE: "usage: a wrong option, URL, name or folder",
    3: "not found: no such run, version or object, or it was retired",
    4: "conflict: another writer, or another pull into the folder",
    5: "mismatch: the model, or what the folder holds, does not fit",
    6: "corrupt, or written by another release",
    7: "unavailable: the store, the disk or another rank did not do it; try again",
    8: "access denied: credentials or a token are missing, wrong or too narrow",
    UNSAFE: "unsafe: the store does not keep the contract for several writers (pulse doctor)",
    10: "untrusted: a record is not signed by a trusted key, or contradicts what was seen",
}


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error: that of its class, or of the nearest class above it."""
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind]
    return UNEXPECTED
