"""Shared clock: the time that all ranks of a member decide by, which is the coordinator's."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from pulse_registry.peers.peers import COORDINATOR, Peers

_TIME: Final = struct.Struct("<d")


def shared_clock(peers: Peers, clock: Callable[[], float]) -> Callable[[], float]:
    """Return what tells the coordinator's time to all ranks; each call is a collective."""

    def now() -> float:
        here = peers.rank == COORDINATOR
        (found,) = _TIME.unpack(peers.broadcast(_TIME.pack(clock()) if here else None, "time"))
        return float(found)

    return now if peers.size > 1 else clock
