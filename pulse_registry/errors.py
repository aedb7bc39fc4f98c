"""The one error tree, grouped by what a caller does about it.

PulseError
├── NotFound            no such run, version or object: check the name, or wait for it
│   └── Gone            the version was retired: take a newer one
├── AlreadyExists       create-if-absent lost: somebody else's object is there
├── Conflict            another writer won: read what it committed, then decide
│   ├── Fenced          a newer writer began its term: this one must stop
│   ├── Mirrored        this root holds a copy of the run: write to the one that it is a copy of
│   └── Forked          a copy and its source have other records of one number: find out who wrote which
├── Diverged            a trainer's weights are not those of its outer rounds: begin again from the newest version
├── QuorumLost          members of outer rounds have left, and a round needs more: start another one, or leave
├── InvalidModel        the model or a tensor of it can't be published or written into: change the model
├── InvalidArgument     a URL, name or option is wrong: change the call
├── LayoutMismatch      names, dtypes or shapes differ: the weights belong to another model
├── BaseMismatch        the weights are not the version they were taken for: pull afresh
├── CorruptObject       stored bytes are not what was committed: restore the object or use another route
├── Untrusted           a record is not signed as it must be, or contradicts what was seen: find out who wrote it
├── UnsupportedFormat   written by another release: upgrade
├── AccessDenied        credentials or a token are missing, wrong, expired or do not allow it: change them
├── StoreUnavailable    the store or the service did not do it (unreachable, full, busy): try again
│   └── Behind          a copy of the run has not come as far as was seen: wait for it, or read another root
└── PeerLost            another rank of the job died or is silent: start it again, and reopen on all ranks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from pulse_registry.quoting import one_line


class PulseError(Exception):
    """Base of every error that Pulse Registry raises on purpose.

    What it says is one line of at most some 8,000 characters, in which whatever is not to be seen is escaped: it may
    quote what others wrote, and ends in logs and on terminals.

    Attributes:
        key: of the stored object that it is about, below the run; None where it is about none, or that is not known.
    """

    key: str | None = None

    def __str__(self) -> str:
        return one_line(super().__str__())


class NotFound(PulseError):
    """The run, version or object does not exist."""


class Gone(NotFound):
    """The version was retired: it can't be had any more, and others can."""


class AlreadyExists(PulseError):
    """A create-if-absent found the key taken."""


class Conflict(PulseError):
    """Another writer committed first; nothing of this call took effect."""


class Fenced(Conflict):
    """A writer with a newer epoch took over the run; this writer can't commit any more."""


class Mirrored(Conflict):
    """The run is a copy that a mirror keeps; nothing was written. Its source takes writes."""


class Forked(Conflict):
    """Two roots have other records under one number; nothing was written, and both are kept as they are.

    Attributes:
        seq: the first number at which they differ; None where only a service's word for it is known.
    """

    def __init__(self, message: str, seq: int | None = None) -> None:
        super().__init__(message)
        self.seq = seq


class Diverged(PulseError):
    """A trainer's weights are not those that the others hold after the same rounds; it must not go on with them."""


class QuorumLost(PulseError):
    """So many members of outer rounds have left that no round can end; nothing is lost.

    What this member has sent counts once another one joins and contributes.
    """


class InvalidModel(PulseError):
    """A model, or a tensor of it, can't be published from or written into."""


class InvalidArgument(PulseError, ValueError):
    """A URL, a name or an option is not valid."""


class LayoutMismatch(PulseError):
    """The weights at hand have other names, dtypes or shapes than the version."""


class BaseMismatch(PulseError):
    """The weights at hand are not the version that a patch starts from; nothing was changed.

    Attributes:
        tensors: names of the tensors, or slices, that differ, in the layout's order; none where that is not known.
    """

    def __init__(self, message: str, tensors: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.tensors = tuple(tensors)


class CorruptObject(PulseError):
    """Stored bytes differ from what was committed; nothing was changed."""


class Distrust(StrEnum):
    """Why a record is not to be believed. Values are only ever added."""

    UNSIGNED = "unsigned"
    WRONG_KEY = "wrong_key"
    BAD_SIGNATURE = "bad_signature"
    ROLLBACK = "rollback"
    FORK = "fork"
    OTHER_RUN = "other_run"


class Untrusted(PulseError):
    """A record is not signed by a key that is trusted, or contradicts what this reader has seen; nothing was changed.

    Attributes:
        reason: which of the two, precisely; None where only a service's word for it is known.
    """

    def __init__(self, message: str, reason: Distrust | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedFormat(PulseError):
    """The object or record has a format version that this release does not read."""


class AccessDenied(PulseError):
    """The store or the service does not allow this with the credentials or the token given; a retry changes nothing."""


class StoreUnavailable(PulseError):
    """The store or the service failed an operation for a reason that is not about the key; to try again may help.

    Attributes:
        retry_after_s: how long the store or the service asked to wait before that, if it did.
        throttled: it did not do it because it is asked too much.
        lasting: to try again at once is in vain: it was tried for long, or somebody has to see to it first.
    """

    retry_after_s: float | None = None
    throttled: bool = False
    lasting: bool = False


class Behind(StoreUnavailable):
    """A root holds a copy of the run that has not come as far as what was seen, or told of, elsewhere.

    Wait for it, or read another root; nothing was changed.
    """


class PeerLost(PulseError):
    """Another rank of the job died, closed its registry, or did not come in time: this handle is of no more use.

    Open the registry again, on all ranks, once the lost rank is back. If a push was under way, the log tells whether
    its version was committed.

    Attributes:
        ranks: those that were lost, in order; several where it is not known which of them; none where it is not known.
    """

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


def told(error: BaseException) -> str:
    """Return what an error says, with its type where it is none of ours: ``MemoryError`` alone says nothing."""
    if isinstance(error, PulseError):
        return str(error)
    said = one_line(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def about(key: str) -> Iterator[None]:
    """Let errors of a block say which stored object they are about, unless they know better: see ``PulseError.key``."""
    try:
        yield
    except PulseError as error:
        if error.key is None:
            error.key = key
        raise
