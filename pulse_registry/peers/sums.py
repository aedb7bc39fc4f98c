"""Sums over all ranks, lane by lane modulo 2**64, and what they are made of: of state digests, and of counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pulse_registry.errors import UnsupportedFormat
from pulse_registry.peers.peers import Peers

_LANE: Final = np.dtype("<u8")


def sum_lanes(peers: Peers, lanes: Sequence[int], what: str = "sum") -> tuple[int, ...]:
    """Add up what each rank gives; a collective.

    Args:
        peers: the ranks.
        lanes: numbers of this rank, 0 to 2**64 - 1; as many on every rank. Of a state digest: its two.
        what: names the call.

    Returns:
        The sum of each lane modulo 2**64, the same on all ranks.

    Raises:
        UnsupportedFormat: another rank gave more lanes, or fewer.
        InvalidArgument, PeerLost: as `Peers`.
    """
    table = np.array(gather_lanes(peers, lanes, what), _LANE)
    return tuple(table.sum(axis=0, dtype=np.uint64).tolist())


def gather_lanes(peers: Peers, lanes: Sequence[int], what: str = "lanes") -> list[list[int]]:
    """Return what each rank gives, by rank, the same on all ranks; see ``sum_lanes``.

    Raises:
        UnsupportedFormat: another rank gave more lanes, or fewer.
        InvalidArgument, PeerLost: as `Peers`.
    """
    mine = np.array(lanes, _LANE).tobytes()
    every = peers.all_gather(mine, what)
    for rank, data in enumerate(every):
        if len(data) != len(mine):
            raise UnsupportedFormat(
                f"rank {rank} gave {len(data)} bytes to add up for {what!r}, and this rank {len(mine)}: have all ranks "
                "run the same release"
            )
    return [np.frombuffer(data, _LANE).tolist() for data in every]
