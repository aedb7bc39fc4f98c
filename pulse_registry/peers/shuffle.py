"""Shuffle: rows of all ranks meet, by key, at one rank, which answers each of them.

So each rank asks about what it has, and learns of nothing else: of 512 ranks that hold 70,000 boxes each, none is sent
the list of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pulse_registry.errors import UnsupportedFormat
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.vote import Attempt

_WORD: Final = np.dtype("<u8")
KEY_BYTES: Final = 16
Rows: TypeAlias = npt.NDArray[np.uint64]
"""Rows of equal width, a number in each column."""
Ranks: TypeAlias = npt.NDArray[np.int64]
"""The rank of each row."""


def shuffle(peers: Peers, rows: Rows, answer: Callable[[Ranks, Rows], Rows], attempt: Attempt, what: str) -> Rows:
    """Return the answer to each row; two exchanges.

    Args:
        peers: the ranks.
        rows: of this rank; the first column is the key, evenly spread: of a hash, say. As wide on all ranks.
        answer: returns a row of one number for each of some rows of all ranks, by rank: with any row that it is given
            it is given all that have the same key.
        attempt: this rank's; after a failure it has no rows.
        what: names the calls.

    Returns:
        The answers, by row; zeros after a failure.
    """
    nothing: list[bytes] = [b""] * peers.size
    none = np.zeros(len(rows), _WORD)
    order = np.argsort(rows[:, 0] % np.uint64(peers.size), kind="stable")
    to = np.bincount((rows[:, 0] % np.uint64(peers.size)).astype(np.int64), minlength=peers.size)
    came = peers.exchange(attempt.run(lambda: _split(rows[order], to), nothing), what)

    def answered() -> list[bytes]:
        asked = [_read(data, rows.shape[1], rank) for rank, data in enumerate(came)]
        counts = np.array([len(one) for one in asked])
        ranks = np.repeat(np.arange(peers.size), counts)
        return _split(answer(ranks, np.concatenate(asked)).reshape(-1, 1), counts)

    back = peers.exchange(attempt.run(answered, nothing), f"{what}: answers")

    def placed() -> Rows:
        said = np.concatenate([_read(data, 1, rank) for rank, data in enumerate(back)])[:, 0]
        found = np.empty(len(rows), _WORD)
        if len(said) == len(found):  # else a rank has failed, and says so in the next vote
            found[order] = said
            return found
        return none

    return attempt.run(placed, none)


def holders(peers: Peers, keys: Sequence[bytes], attempt: Attempt, what: str) -> list[tuple[int, int]]:
    """Return, of each key of this rank, which of the ranks that have it this one is, and how many have it.

    Args:
        peers: the ranks.
        keys: hashes of 16 bytes, no two of a rank equal.
        attempt: this rank's.
        what: names the calls.
    """
    found = shuffle(peers, rows_of(keys, KEY_BYTES), _counted, attempt, what)
    numbers, counts = found >> np.uint64(32), found & np.uint64(0xFFFFFFFF)
    return list(zip(numbers.tolist(), counts.tolist(), strict=True))


def rows_of(parts: Sequence[bytes], size: int) -> Rows:
    """Return hashes, each with what belongs to it, as rows; ``size`` is in bytes."""
    return np.frombuffer(b"".join(parts), _WORD).reshape(-1, size // _WORD.itemsize)


def by_key(ranks: Ranks, rows: Rows) -> tuple[Ranks, Ranks, Ranks]:
    """Return an order of rows by key, the first 16 bytes, and then by rank; and where each row's key begins and ends.

    Both are places in that order, one for each row in it.
    """
    order = np.lexsort((ranks, rows[:, 1], rows[:, 0]))
    keys = rows[order, :2]
    new = np.ones(len(order), np.bool_)
    new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    number = np.cumsum(new) - 1
    return order, starts[number], np.append(starts[1:], len(order))[number]


def _counted(ranks: Ranks, rows: Rows) -> Rows:
    """Return, of each row, which of its key's it is, in the upper half of a number, and how many there are."""
    order, starts, stops = by_key(ranks, rows)
    found = np.empty(len(rows), np.uint64)
    found[order] = (np.arange(len(order)) - starts << 32) + (stops - starts)
    return found


def _split(rows: Rows, counts: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the rows of each rank."""
    return [part.astype(_WORD).tobytes() for part in np.split(rows, np.cumsum(counts)[:-1])]


def _read(data: memoryview, width: int, rank: int) -> Rows:
    if len(data) % (width * _WORD.itemsize):
        raise UnsupportedFormat(
            f"rank {rank} gave {len(data)} bytes where rows of {width} numbers are due: have all ranks run the same "
            "release"
        )
    return np.frombuffer(data, _WORD).reshape(-1, width).astype(np.uint64, copy=False)
