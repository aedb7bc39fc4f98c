"""Whose turn it is to write a checkpoint: by counting what the log says, so that all members answer alike. No I/O."""

from __future__ import annotations

from typing import Final

from pulse_registry.outer.state import ClosedRound, OuterState

SHARE: Final = 2
"""Contributions since the last checkpoint have so many times its bytes when the next one is due.

So checkpoints add at most half to what all members upload together, and who joins fetches at most three times as much.
"""
_FIRST_BYTES: Final = 6
"""A cell of a checkpoint takes about: what the first one is taken to have."""
_QUARTERS: Final = 4
"""After each further quarter of the bytes at which it was due it is another member's turn: the first may have died."""


def writer_of(state: OuterState, closed: ClosedRound, cells: int, share: float = SHARE) -> str | None:
    """Return the member that is to write a checkpoint of a round; None: nobody is.

    The same for all who fold the log, whenever they ask: records after the one that ended the round are left out of
    account.

    Args:
        state: of the log, which keeps the round.
        closed: the round.
        cells: of the layout.
        share: see ``SHARE``.
    """
    before = [one for one in state.checkpoints if one.seq <= closed.seq]
    since = before[-1].round if before else state.begun
    if since < state.dropped or not closed.contributions:
        return None
    due = max(1, round(share * (before[-1].object.size + before[-1].parts if before else _FIRST_BYTES * cells)))
    sent = [round_bytes(one) for one in state.closed if since < one.number <= closed.number]
    turn, earlier = (_QUARTERS * total // due - _QUARTERS for total in (sum(sent), sum(sent[:-1])))
    if turn < 0 or turn == earlier:
        return None
    members = sorted(closed.contributions)
    return members[turn % len(members)]


def round_bytes(closed: ClosedRound) -> int:
    """Return the bytes of a round's contributions."""
    return sum(one.object.size for one in closed.contributions.values() if one.object is not None)
