"""A sharded push: one rank's part of a push, diffed, and neither committed nor failed yet; see ``PendingPush``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from pulse_registry.push.carried_files import CarriedFiles
from pulse_registry.push.future import PushFuture
from pulse_registry.push.shadow import Shadow
from pulse_registry.push.sharded_baseline import Prepared
from pulse_registry.timeline import Timeline


class Kind(IntEnum):
    """What ranks are about to do. Values go over the wire."""

    PATCH = 0
    KEYFRAME = 1
    PREPARE = 2


@dataclass(slots=True, eq=False)
class ShardedPush:
    """This rank's part of a push.

    Attributes:
        kind: a patch, or a keyframe.
        version: its number, if all pushes before it are committed.
        step: the trainer's label of it.
        prepared: what it was diffed against.
        shadow: holds its cells; None: this rank has failed before it had one.
        metadata: of the version; the coordinator's counts.
        files: that go along with it; the coordinator's, and no other rank's.
        number: of the rank's pushes, from 1 on: the same on all ranks.
        timeline: of the push.
        future: of the push.
        replicas: digests of the replicas that this rank holds, for all to compare; None: they are not compared.
        failure: what went wrong on this rank, for all ranks to raise.
        in_doubt: whether its record may be in the log.
        committed: whether its record is in the log.
        replaced: empty: no push takes another one's place.
    """

    kind: Kind
    version: int
    step: int
    prepared: Prepared
    shadow: Shadow | None
    metadata: Mapping[str, Any]
    files: CarriedFiles | None
    number: int
    timeline: Timeline
    future: PushFuture
    replicas: Sequence[bytes] | None = None
    failure: Exception | None = None
    in_doubt: bool = False
    committed: bool = False
    replaced: list[PushFuture] = field(default_factory=list)
