"""What is said of a rank that is lost: that it is waited for, that it is gone, that it never came."""

from __future__ import annotations

from collections.abc import Sequence

from pulse_registry.errors import PeerLost
from pulse_registry.peers.call import named

_REOPEN = "Start what was lost again, and open the registry again on all ranks"


def gone(
    ranks: Sequence[int], size: int, place: str, how: str = "died, or lost its connection", *, sure: bool = False
) -> PeerLost:
    """Return the error of ranks that are there no more.

    Args:
        ranks: which; none: it is not known which.
        size: how many ranks there are.
        place: the call that this rank was at.
        how: they were lost.
        sure: that it is all of them, and not one of them.
    """
    one_of = "at least one of " if len(ranks) > 1 and not sure else ""
    return PeerLost(f"{one_of}{_whose(ranks, size)} {how}, while this rank was at {place}. {_REOPEN}", ranks)


def late(rank: int, size: int, place: str) -> PeerLost:
    """Return the error of this rank, where the others have given up waiting for it."""
    return PeerLost(f"the others gave up waiting for this rank, {rank} of {size}, at {place}. {_REOPEN}", [rank])


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
        f"{_whose(ranks, size)} did not come to {place} within {seconds:g} s{there}. A call for a sharded model "
        f"has to be made on every rank; or the rank hangs. {_REOPEN}",
        ranks,
    )


def waiting(ranks: Sequence[int], size: int, place: str, seconds: float, timeout_s: float) -> str:
    """Return what is said of ranks that a call has waited for, for so many seconds; none: it is not known for which."""
    return f"{place} has waited {seconds:g} s for {_whose(ranks, size)}, and gives up after {timeout_s:g} s"


def again(lost: PeerLost) -> PeerLost:
    """Return the error of a call that was made after a rank was lost."""
    return PeerLost(f"this handle can't be used since a rank was lost: {lost}", lost.ranks)


def _whose(ranks: Sequence[int], size: int) -> str:
    if not ranks:
        return (
            f"a rank of {size} (it is not known which: the store that tells it, at rank 0 or torchrun, does not answer)"
        )
    return f"{named(ranks)} of {size}"
