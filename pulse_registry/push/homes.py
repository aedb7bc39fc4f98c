"""Homes: the rank at which each group of a sharded model is coded, and its part of a patch stored.

A part is at home where most of its cells are held, if that rank has not its fair share of parts yet; nothing that is
stored tells where. A patch in one object has all of its groups at the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pulse_registry.format.directory import Column
from pulse_registry.format.patch_parts import in_parts, part_of
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.weights.slice_map import SliceMap

_COUNT: Final = np.dtype("<i8")


def homes_of(peers: Peers, slices: SliceMap) -> Column:
    """Return the rank of each group, by number; a collective."""
    geometry = slices.geometry
    if not in_parts(geometry):
        return np.full(len(geometry.groups), COORDINATOR, _COUNT)
    every = peers.gather(of_parts(slices).tobytes(), "cells of parts")
    attempt = Attempt(peers)
    ranks = attempt.run(lambda: b"" if every is None else dealt(every).tobytes(), b"")
    said = peers.broadcast(ranks if every is not None else None, "homes")
    attempt.agree("homes")
    parts: Column = np.frombuffer(said, _COUNT)
    return parts[np.fromiter(map(part_of, range(len(geometry.groups))), np.int64)]


def of_parts(slices: SliceMap) -> Column:
    """Return how many cells of each part the slices hold."""
    held = np.zeros(part_of(len(slices.geometry.groups) - 1) + 1, _COUNT)
    np.add.at(held, [part_of(number) for number in slices.groups], slices.counts)
    return held


def dealt(every: Sequence[bytes]) -> Column:
    """Return the rank of each part, from how many of its cells each rank holds."""
    held = np.stack([np.frombuffer(said, _COUNT) for said in every]).T.copy()
    parts, ranks = held.shape
    most, load = -(-parts // ranks), np.zeros(ranks, _COUNT)
    homes = np.zeros(parts, _COUNT)
    for part in range(parts):
        homes[part] = np.where(load < most, held[part], -1).argmax()
        load[homes[part]] += 1
    return homes
