"""Sums over all ranks, lane by lane modulo 2**64: of state digests, and of counts."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from pulse_registry.errors import UnsupportedFormat
from pulse_registry.peers.peers import Peers

_MASK: Final = 2**64 - 1


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
    lane = struct.Struct(f"<{len(lanes)}Q")
    total = [0] * len(lanes)
    for rank, data in enumerate(peers.all_gather(lane.pack(*lanes), what)):
        if len(data) != lane.size:
            raise UnsupportedFormat(
                f"rank {rank} gave {len(data)} bytes to add up for {what!r}, and this rank {lane.size}: have all ranks "
                "run the same release"
            )
        total = [(sum_ + more) & _MASK for sum_, more in zip(total, lane.unpack(data), strict=True)]
    return tuple(total)
