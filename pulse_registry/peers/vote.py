"""The vote: whether all ranks did what they had to, or all raise the same error.

A rank that fails between two collectives must not leave the others waiting in the next one. It goes on taking part,
with nothing to give, until the vote tells everybody:

    attempt = Attempt(peers)
    parts = attempt.run(lambda: split(changes), [b""] * peers.size)
    changes = peers.exchange(parts, "changes")
    coded = attempt.run(lambda: code(changes), None)
    attempt.agree("code")                      # from here on, it went well on every rank
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pulse_registry import errors
from pulse_registry.errors import Distrust, PeerLost, PulseError, StoreUnavailable, UnsupportedFormat, Untrusted, told
from pulse_registry.peers.lone import LonePeers
from pulse_registry.peers.peers import Peers
from pulse_registry.quoting import MESSAGE_LIMIT, cut, printable

_MOST_KEY: Final = 2_000
_MOST_MESSAGE: Final = 2 * MESSAGE_LIMIT
_MOST_BYTES: Final = 8 * _MOST_MESSAGE
_MOST_RANKS: Final = 1_000
_KINDS: Final = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PulseError)
}
Result = TypeVar("Result")


class _Failure(BaseModel):
    """What goes over the wire of a rank's error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Annotated[str, Field(max_length=100)]
    message: Annotated[str, Field(max_length=_MOST_MESSAGE)]
    key: Annotated[str, Field(max_length=_MOST_KEY)] | None = None
    reason: Distrust | None = None
    retry_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    throttled: bool = False
    lasting: bool = False
    ranks: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=_MOST_RANKS)] = ()

    @classmethod
    def of(cls, error: Exception) -> _Failure:
        """Return what the other ranks are to know of an error."""
        if not isinstance(error, PulseError):
            return cls(kind=PulseError.__name__, message=f"it failed unexpectedly: {told(error)}")
        kind = next(kind for kind in type(error).__mro__ if kind.__name__ in _KINDS)
        return cls(
            kind=kind.__name__,
            message=str(error),
            key=None if error.key is None else cut(printable(error.key), _MOST_KEY // 2),
            reason=error.reason if isinstance(error, Untrusted) else None,
            retry_after_s=error.retry_after_s if isinstance(error, StoreUnavailable) else None,
            throttled=isinstance(error, StoreUnavailable) and error.throttled,
            lasting=isinstance(error, StoreUnavailable) and error.lasting,
            ranks=error.ranks[:_MOST_RANKS] if isinstance(error, PeerLost) else (),
        )

    def error(self, rank: int) -> PulseError:
        """Return the error that all ranks raise for that of a rank."""
        kind = _KINDS.get(self.kind, PulseError)
        message = f"rank {rank}: {self.message}"
        error: PulseError
        if issubclass(kind, Untrusted):
            error = kind(message, self.reason)
        elif issubclass(kind, PeerLost):
            error = kind(message, self.ranks)
        else:
            error = kind(message)
        if isinstance(error, StoreUnavailable):
            error.retry_after_s, error.throttled, error.lasting = self.retry_after_s, self.throttled, self.lasting
        error.key = self.key
        return error


def agree(peers: Peers, failure: Exception | None, what: str = "vote") -> None:
    """Return if no rank failed; otherwise all ranks raise the error of the lowest one that did. A collective.

    Class, message, ``key`` and the other attributes travel; the message names the rank. An error that is none of ours
    is a defect: it is raised as it is where it came up, and on the other ranks as a `PulseError` that says what it was.

    Args:
        peers: the ranks.
        failure: what went wrong on this rank; None: nothing.
        what: names the call.

    Raises:
        PulseError: of the lowest rank that failed.
        UnsupportedFormat: another rank told what this release does not read.
        PeerLost: a rank is gone.
    """
    if isinstance(peers, LonePeers):
        if failure is not None:
            raise failure
        return
    mine = b"" if failure is None else _Failure.of(failure).model_dump_json().encode()
    every = peers.all_gather(mine, what)
    if not any(every):
        return
    failed = next(rank for rank, data in enumerate(every) if data)
    if failure is not None and not isinstance(failure, PulseError):
        raise failure
    raise _parsed(every[failed], failed).error(failed) from failure


class Attempt:
    """What this rank does between collectives: after a failure it does nothing more, and takes part until the vote.

    Attributes:
        failure: what went wrong first; None: nothing so far.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.failure: Exception | None = None

    def run(self, work: Callable[[], Result], otherwise: Result) -> Result:
        """Do some work, in which there is no collective, and return its result.

        Args:
            work: is left out if something failed before.
            otherwise: the result if the work fails, or is left out: what this rank gives to the next collective.

        Raises:
            PeerLost: the work did talk to the other ranks, and one is gone: there is nobody to vote with.
        """
        if self.failure is not None:
            return otherwise
        try:
            return work()
        except PeerLost:
            raise
        except Exception as error:  # noqa: BLE001 - the edge to the other ranks, who would wait for this one
            self.failure = error
            return otherwise

    def agree(self, what: str = "vote") -> None:
        """Vote: see `agree`. After it, whatever it raises, the next attempt begins."""
        failure, self.failure = self.failure, None
        agree(self._peers, failure, what)


def _parsed(data: bytes, rank: int) -> _Failure:
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError("too long")
        return _Failure.model_validate_json(data)
    except (ValidationError, ValueError) as error:
        raise UnsupportedFormat(
            f"rank {rank} failed, in words that this release does not read: have all ranks run the same release"
        ) from error
