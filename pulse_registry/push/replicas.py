"""Replicas: boxes that several ranks hold, which must be equal, cell for cell.

Of each, every holder speaks for a piece: that the others have drifted away from it shows in no diff. Two pipeline
stages that use one name for two layers look like replicas, too. So they are compared, by digests: at the first push,
and at the push that a keyframe follows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from pulse_kernels import CELL_TYPES, Backend, Cells
from pulse_registry.errors import InvalidModel
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.shuffle import Ranks, Rows, by_key, rows_of, shuffle
from pulse_registry.peers.vote import Attempt
from pulse_registry.pull.sliced_cells import SlicedCells
from pulse_registry.push.gaps import place
from pulse_registry.push.holdings import HASH, Spoken, hash_of
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import View
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import Dtype, Layout, Tensor

_DIGEST: Final = struct.Struct("<2Q")


class ReplicaWatch:
    """Decides at which pushes replicas are compared: so that a keyframe comes after it, and nobody waits each time.

    A pass over the replicas is made while the trainer waits, since it may change them after that. Ranks are told after
    a push whether the next one is to be compared; a push that was diffed before that on one of them is not.
    """

    def __init__(self, peers: Peers, backend: Backend) -> None:
        """Begin before the first push."""
        self._peers, self._backend = peers, backend
        self._wanted = False
        self._equal = -1  # the newest version at which they were

    def begin(self, spoken: Spoken, views: Mapping[str, View]) -> None:
        """Compare them before the first push; a collective.

        Raises:
            InvalidModel: on all ranks: they differ; names the tensor and the ranks.
        """
        attempt = Attempt(self._peers)
        nothing: list[bytes] = []
        digests = attempt.run(lambda: replica_digests(spoken, views, self._backend), nothing)
        check_replicas(self._peers, spoken, digests, attempt)
        self._wanted = False

    def begin_after(self, version: int) -> None:
        """Take note of the version that the first push follows."""
        self._equal = version

    def digests(self, spoken: Spoken, views: Mapping[str, View]) -> list[bytes] | None:
        """Return digests of the replicas, if they are to be compared at this push."""
        return replica_digests(spoken, views, self._backend) if self._wanted else None

    def compare(self, spoken: Spoken, digests: Sequence[bytes], version: int) -> None:
        """Compare what all ranks have taken; a collective.

        Raises:
            InvalidModel: on all ranks: they differ; names the tensor, the ranks, and the versions that may be wrong.
        """
        check_replicas(self._peers, spoken, digests, Attempt(self._peers), since=self._equal)
        self._equal = version

    def follow(self, version: int, *, due: bool, soon: bool) -> None:
        """Take note, of a committed version, whether a keyframe of it is due, and whether one of the next will be."""
        self._wanted = soon or ((due or self._wanted) and self._equal != version)


def replica_digests(spoken: Spoken, views: Mapping[str, View], backend: Backend) -> list[bytes]:
    """Return, of each box that other ranks hold, too, its hash and what its cells add to the state digest."""
    geometry = spoken.slices.geometry
    tensors = {tensor.name: number for number, tensor in enumerate(geometry.layout.tensors)}
    found = []
    for holding in spoken.replicated:
        number = tensors[holding.name]
        tensor = Tensor(name="one", dtype=geometry.layout.tensors[number].dtype, shape=(holding.box.cells,))
        slices = SliceMap(geometry, Layout(tensors=(tensor,)), [(number, holding.box)], {})
        cells = SlicedCells(slices, partial(_published, backend, views[holding.view.name], tensor.dtype))
        total = sum((cells.share(backend, geometry.groups[number]) for number in slices.groups), Digest())
        found.append(hash_of(holding) + _DIGEST.pack(total.lane_0, total.lane_1))
    return found


def check_replicas(
    peers: Peers, spoken: Spoken, digests: Sequence[bytes], attempt: Attempt, since: int | None = None
) -> None:
    """Check that boxes which several ranks hold are equal; a collective.

    Args:
        peers: the ranks.
        spoken: what this rank speaks for.
        digests: of its replicas.
        attempt: this rank's, in which they were taken.
        since: the newest version at which they were known to be equal, or -1; None: they were never compared.

    Raises:
        InvalidModel: on all ranks: they differ; names the tensor and the ranks.
    """
    rows = rows_of(digests, HASH + _DIGEST.size)
    others = shuffle(peers, rows, _differing, attempt, "replicas")

    def check() -> None:
        for holding, other in zip(spoken.replicated, others.tolist(), strict=False):
            if other:
                drifted = ""
                if since is not None:
                    drifted = f". Versions {'so far' if since < 0 else f'after {since}'} may mix their cells"
                raise InvalidModel(
                    f"tensor {holding.name!r}, {place(holding.box)}, is not the same on rank {other - 1} and on rank "
                    f"{peers.rank}, which both hold it: they are no replicas, but other tensors under one name, or "
                    f"they have drifted apart{drifted}"
                )

    attempt.run(check, None)
    attempt.agree("replicas")


def _differing(ranks: Ranks, rows: Rows) -> Rows:
    """Return of each replica one more than the first rank that has it, if its digest is another one there; else 0."""
    order, starts, _ = by_key(ranks, rows)
    digests = rows[order, 2:]
    differs = (digests != digests[starts]).any(axis=1)
    found = np.empty(len(rows), np.uint64)
    found[order] = np.where(differs, ranks[order][starts] + 1, 0)
    return found


def _published(backend: Backend, view: View, dtype: Dtype, _: int, where: slice) -> Cells:
    """Return some live cells as they are published: F32 masters rounded."""
    live = view.span(where.start, where.stop)
    if view.dtype == dtype:
        return live
    rounded = np.empty(len(live), CELL_TYPES[dtype].dtype)
    backend.cast_f32(np.ascontiguousarray(live), rounded)
    return rounded
