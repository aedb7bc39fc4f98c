"""Contributions in a store: put by their authors, fetched and decoded by all members of the round."""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from pulse_kernels import Backend
from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys
from pulse_registry.format.contribution import Contribution, contribution_bytes, most_bytes
from pulse_registry.log.clock import NewId, random_id
from pulse_registry.outer.log import FOLDER
from pulse_registry.outer.mean import GroupLevels, GroupValues, Part
from pulse_registry.outer.weights import OuterWeights, Sent
from pulse_registry.store import PrefixStore, Store
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import ObjectRef
from pulse_schemas.heads import ContributionHead
from pulse_schemas.objects import Values
from pulse_schemas.outer import ContributeRecord


class Contributions:
    """The contributions of one run's rounds."""

    def __init__(self, store: Store, geometry: Geometry, backend: Backend, new_id: NewId = random_id) -> None:
        """Prepare; no I/O yet. ``store`` is scoped to the run; ``new_id`` gives each object a name of its own."""
        self._new_id = new_id
        self._store, self._geometry, self._backend = PrefixStore(store, FOLDER), geometry, backend

    def put(self, weights: OuterWeights, sent: Sent, base: str, round_: int, member: str, exponent: int) -> ObjectRef:
        """Store what is sent, and return what a record says of it.

        Raises:
            StoreUnavailable, AccessDenied: as the store. The object may be there, under a name that nobody else uses.
        """

        def head(changed: int, groups: int) -> ContributionHead:
            return ContributionHead(
                layout=self._geometry.id,
                base=base,
                round=round_,
                member=member,
                values="levels" if all(isinstance(part, GroupLevels) for _, part in sent) else "float32",
                exponent=exponent,
                changed=changed,
                groups=groups,
            )

        parts = [
            (group, part.index, part.levels if isinstance(part, GroupLevels) else part.values) for group, part in sent
        ]
        data = contribution_bytes(
            self._backend, self._geometry, head, parts, lambda group: [weights.version_cells(group)]
        )
        key = keys.contribution_key(round_, member, self._new_id())
        self._store.put(key, data)
        return ObjectRef(key=key, size=len(data), blake3=blake3(data).hexdigest())

    def get(self, weights: OuterWeights, record: ContributeRecord, values: Values, weight: int) -> Sent:
        """Fetch and decode a contribution to the round that begins with these weights.

        Args:
            weights: of the round's start.
            record: of the contribution.
            values: that the rounds are of.
            weight: of the member.

        Raises:
            CorruptObject: it is damaged, or not what the record says.
            BaseMismatch: it was made from other weights.
            NotFound, StoreUnavailable: as the store.
        """
        if record.object is None:
            return []
        key, most = record.object.key, most_bytes(self._geometry)
        if record.object.size > most:
            raise CorruptObject(
                f"{key}: record {record.seq} says that it has {record.object.size:,} bytes, and it has {most:,} at most"
            )
        data = self._store.get(key, max_bytes=record.object.size)
        found = Contribution.parse(record.object, self._geometry, data)
        if found.head.values != values or not is_head_of(found.head, record):
            raise CorruptObject(f"{key}: it is not the contribution that record {record.seq} names")
        sent = list[tuple[Group, Part]]()
        for number in found.entries:
            group = self._geometry.groups[number]
            index, cells = found.decode(self._backend, group, [weights.version_cells(group)])
            if cells.dtype == np.float32:
                sent.append((group, GroupValues(index, cells.view(np.float32), weight)))
            else:
                sent.append((group, GroupLevels(index, cells.view(np.int16), record.exponent, weight)))
        return sent


def is_head_of(head: ContributionHead, record: ContributeRecord) -> bool:
    """Tell whether an object says of itself what a record says of it."""
    said = (head.base, head.round, head.member, head.exponent, head.changed)
    return said == (record.base, record.round, record.member, record.exponent, record.entries)
