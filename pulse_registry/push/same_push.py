"""Same push: the first collective of each push, by which ranks find out whether all are about to do the same."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from pulse_registry.errors import Conflict, InvalidArgument
from pulse_registry.peers.call import named
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.vote import agree
from pulse_registry.push.sharded_push import Kind

_HEAD: Final = struct.Struct("<BQqq??")


@dataclass(frozen=True, slots=True)
class Announced:
    """What a rank is about to do.

    Attributes:
        kind: of work.
        number: of the rank's pushes.
        step: the trainer's label.
        version: that is to be made.
        compared: whether this rank has digests of the replicas that it holds, for all to compare.
    """

    kind: Kind
    number: int
    step: int
    version: int = 0
    compared: bool = False


def check_same_push(peers: Peers, mine: Announced, failure: Exception | None) -> bool:
    """Check that all ranks are about to do the same, and that nothing is wrong on any; a collective.

    Args:
        peers: the ranks.
        mine: what this rank is about to do.
        failure: what is wrong on this rank; None: nothing.

    Returns:
        Whether all ranks have digests of their replicas.

    Raises:
        InvalidArgument: they are not: on all ranks.
        Conflict: some of them have to begin anew, and others do not: on all ranks; now all do.
        PulseError: what is wrong on one rank: on all.
    """
    packed = _HEAD.pack(mine.kind, mine.number, mine.step, mine.version, failure is None, mine.compared)
    said = [_HEAD.unpack(data) for data in peers.all_gather(packed, "push")]
    agree(peers, failure, "model")
    steps = [row[1:3] for row in said]
    other = next((rank for rank, one in enumerate(steps) if one != steps[0]), None)
    if other is not None:
        (count, first), (number, step) = steps[0], steps[other]
        raise InvalidArgument(
            f"rank {other} pushes step {step}, its push {number}, and rank 0 step {first}, its push {count}: all "
            "ranks push the same steps, in the same order. Nothing was committed"
        )
    kinds, versions = [row[0] for row in said], [row[3] for row in said]
    if len(set(kinds)) > 1 or len(set(versions)) > 1:
        anew = [rank for rank, one in enumerate(kinds) if one == Kind.PREPARE] or range(peers.size)
        raise Conflict(
            f"step {mine.step} was not pushed, since {named(anew)} had to begin anew, with other tensors than before, "
            "and the others went on: now all begin anew. The next push carries its changes"
        )
    return all(row[5] for row in said)
