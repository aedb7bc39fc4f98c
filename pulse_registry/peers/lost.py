"""What is said of a rank that is lost: that it is waited for, that it is gone, that it never came."""

from __future__ import annotations

from collections.abc import Sequence

from pulse_registry.errors import PeerLost
from pulse_registry.peers.call import named

_REOPEN = "Start what was lost again, and open the registry again on all ranks"


def gone(ranks: Sequence[int], size: int, place: str, how: str = "died, or lost its connection") -> PeerLost:
    """Return the error of ranks that are there no more.

    Args:
        ranks: which; several: at least one of them; none: it is not known which.
        size: how many ranks there are.
        place: the call that this rank was at.
        how: they were lost.
    """
    one_of = "at least one of " if len(ranks) > 1 else ""
    return PeerLost(f"{one_of}{named(ranks)} of {size} {how}, while this rank was at {place}. {_REOPEN}", ranks)


def silent(ranks: Sequence[int], size: int, place: str, seconds: float) -> PeerLost:
    """Return the error of ranks that did not come to a call in time.

    Args:
        ranks: which; none: it is not known which.
        size: how many ranks there are.
        place: the call that this rank was at.
        seconds: how long they were waited for.
    """
    came = [rank for rank in range(size) if rank not in set(ranks)] if ranks else []
    there = f" ({named(came)} came)" if came else ""
    return PeerLost(
        f"{named(ranks)} of {size} did not come to {place} within {seconds:g} s{there}. A call for a sharded model "
        f"has to be made on every rank; or the rank hangs. {_REOPEN}",
        ranks,
    )


def waiting(ranks: Sequence[int], size: int, place: str, seconds: float, timeout_s: float) -> str:
    """Return what is said of ranks that a call has waited for, for so many seconds; none: it is not known for which."""
    return f"{place} has waited {seconds:g} s for {named(ranks)} of {size}, and gives up after {timeout_s:g} s"


def again(lost: PeerLost) -> PeerLost:
    """Return the error of a call that was made after a rank was lost."""
    return PeerLost(f"this handle can't be used since a rank was lost: {lost}", lost.ranks)
