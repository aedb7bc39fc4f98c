"""Checkpoints of outer rounds in a store: read into a member's weights, and compared with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from pulse_kernels import Backend, Cells, CodecError, RankError
from pulse_kernels.format.outer_state import decode_state
from pulse_kernels.select import exponent_loops
from pulse_registry.errors import BaseMismatch, CorruptObject
from pulse_registry.format.directory import Entry
from pulse_registry.format.keys import checkpoint_group_key
from pulse_registry.format.outer_checkpoint import CheckpointGroups, most_checkpoint_head
from pulse_registry.outer.log import FOLDER
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt
from pulse_registry.store import PrefixStore, Store
from pulse_registry.store.verified_read import checked, verified
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_schemas.outer import CheckpointRecord

Sums = Mapping[int, tuple[Digest, Digest]]
"""Shares of the state digests of theta and of momentum, by number of the group."""


def fetch_groups(store: Store, record: CheckpointRecord, geometry: Geometry) -> CheckpointGroups:
    """Fetch and check the head of a checkpoint, from a store that is scoped to outer rounds.

    Raises:
        CorruptObject, UnsupportedFormat: it can't be read.
        NotFound, StoreUnavailable: as the store.
    """
    key, most = record.object.key, most_checkpoint_head(geometry)
    if record.object.size > most:
        raise CorruptObject(
            f"{key}: record {record.seq} says that it has {record.object.size:,} bytes, and it has {most:,} at most"
        )
    fetch = partial(store.get, key, max_bytes=record.object.size)
    return checked(fetch, partial(CheckpointGroups.parse, record, geometry))


class Checkpoints:
    """The checkpoints of one run's rounds."""

    def __init__(self, store: Store, geometry: Geometry, backend: Backend) -> None:
        """Prepare; no I/O yet. ``store`` is scoped to the run."""
        self._store, self._geometry, self._backend = PrefixStore(store, FOLDER), geometry, backend
        self._loops = exponent_loops(backend.name)

    def read(self, record: CheckpointRecord, weights: OuterWeights, version: Callable[[Group], Cells]) -> None:
        """Fetch a checkpoint into weights, group by group; a collective.

        Args:
            record: names it.
            weights: get theta and momentum, bit for bit; after an error they hold nothing in particular. What was not
                sent stays.
            version: returns the BF16 weights of a group after that round.

        Raises:
            CorruptObject: it is damaged, or not what the record says.
            BaseMismatch: it belongs to other BF16 weights.
            NotFound, StoreUnavailable: as the store.
        """
        attempt = Attempt(weights.peers)
        found = attempt.run(lambda: [fetch_groups(self._store, record, self._geometry)], list[CheckpointGroups]())

        def read(group: Group) -> tuple[Digest, Digest]:
            return self._read_group(record, found[0].entries.get(group.number), weights, group, version(group))

        sums = [attempt.run(partial(read, one), (Digest(), Digest())) for one in weights.groups]
        attempt.agree("groups of the checkpoint")
        share = [sum(column, Digest()) for column in zip(*sums, strict=True)] or [Digest(), Digest()]
        lanes = sum_lanes(
            weights.peers, tuple(lane for one in share for lane in (one.lane_0, one.lane_1)), "checkpoint"
        )
        if (Digest(*lanes[:2]).hex(), Digest(*lanes[2:]).hex()) != (record.theta, record.momentum):
            raise CorruptObject(f"{record.object.key}: it is not the state that record {record.seq} tells of")

    def differing(self, record: CheckpointRecord, mine: Sums) -> str | None:
        """Say in words in which tensors a checkpoint is other than a state whose sums are known; None: in none of them.

        Raises:
            CorruptObject, NotFound, StoreUnavailable: as ``fetch_groups``.
        """
        entries = fetch_groups(self._store, record, self._geometry).entries
        for number, (theta, momentum) in mine.items():
            entry = entries.get(number)
            if entry is None:
                if momentum == Digest():
                    continue
                what = "momentum"
            elif entry.old_sum != theta:
                what = "weights"
            elif entry.new_sum != momentum:
                what = "momentum"
            else:
                continue
            names = [self._geometry.layout.tensors[span.tensor].name for span in self._geometry.groups[number].spans]
            which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            return f"{what} of group {number} ({which})"
        return None

    def _read_group(
        self, record: CheckpointRecord, entry: Entry | None, weights: OuterWeights, group: Group, version: Cells
    ) -> tuple[Digest, Digest]:
        """Bring one group, and return its sums."""
        theta, momentum = weights.patterns(group)
        if entry is None:
            np.left_shift(version, 16, out=theta, dtype=np.uint32)
            momentum[:] = 0
            return weights.sums(group)
        key = checkpoint_group_key(record.object.key, group.number)
        fetch = partial(self._store.get, key, (0, entry.size))
        data = verified(fetch, entry.blake3, f"{key}: its BLAKE3")
        try:
            touched = decode_state(self._backend, self._loops, version, data, theta, momentum)
        except RankError as error:
            raise BaseMismatch(f"{key}: it belongs to other weights than those of the round's version") from error
        except CodecError as error:
            raise CorruptObject(f"{key}: {error}") from error
        sums = weights.sums(group)
        if touched != entry.changed or sums != (entry.old_sum, entry.new_sum):
            raise CorruptObject(f"{key}: it is not the state that was coded")
        return sums
