"""Contributions in a store: put by their authors, fetched and decoded by all members of the round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from blake3 import blake3

from pulse_kernels import Backend, Cells
from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys
from pulse_registry.format.contribution import Contribution, code_levels, joined_groups, most_bytes
from pulse_registry.format.directory import ENTRY_BYTES, Directory
from pulse_registry.format.merged import Merged, merged_bytes, most_merged_bytes
from pulse_registry.format.patch_coding import Coded
from pulse_registry.log.clock import NewId, random_id
from pulse_registry.outer.log import FOLDER
from pulse_registry.outer.mean import GroupLevels, GroupTotals, GroupValues, Part
from pulse_registry.outer.weights import OuterWeights, Sent
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt
from pulse_registry.process.parallel import Map
from pulse_registry.store import PrefixStore, Store, create
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import ObjectRef
from pulse_schemas.heads import ContributionHead, MergedHead
from pulse_schemas.objects import Values
from pulse_schemas.outer import ContributeRecord, MergedRecord


class HoldsVersion(Protocol):
    """Whoever holds the BF16 weights that a round began with."""

    @property
    def peers(self) -> Peers:
        """Return its ranks."""

    @property
    def homes(self) -> Sequence[Collection[int]]:
        """Return of each rank the numbers of the groups that it keeps."""

    @property
    def each(self) -> Map:
        """Return what calls a function on each of some groups, maybe in threads."""

    def version_cells(self, group: Group) -> Cells:
        """Return the weights of a group that is kept here."""


class Contributions:
    """The contributions of one run's rounds."""

    def __init__(self, store: Store, geometry: Geometry, backend: Backend, new_id: NewId = random_id) -> None:
        """Prepare; no I/O yet. ``store`` is scoped to the run; ``new_id`` gives each object a name of its own."""
        self._new_id = new_id
        self._store, self._geometry, self._backend = PrefixStore(store, FOLDER), geometry, backend
        self._own: tuple[ObjectRef, Sent] | None = None  # what was put last, until it is asked for

    def put(self, weights: OuterWeights, sent: Sent, head: ContributionHead) -> tuple[int, ObjectRef | None]:
        """Store what is sent of all ranks, and return what a record says of it; a collective.

        Args:
            weights: of the round's start.
            sent: of the groups that are at home here.
            head: of the object, but for how many cells and groups it has.

        Returns:
            How many entries there are; and the object, None if there is none.

        Raises:
            StoreUnavailable, AccessDenied: on all ranks: as the store. The object may be there all the same.
        """
        peers = weights.peers
        attempt = Attempt(peers)
        mine = attempt.run(lambda: self._coded(weights, sent), list[Coded]())
        every = peers.gather(_packed(mine), "contribution")

        def counted(changed: int, groups: int) -> ContributionHead:
            return head.model_copy(update={"changed": changed, "groups": groups})

        def store() -> bytes:
            coded = sorted((one for data in every or () for one in _unpacked(data)), key=lambda one: one.entry.group)
            if not coded:
                return b""
            data = joined_groups(self._geometry, counted, coded)
            key = keys.contribution_key(head.round, head.member, self._new_id())
            create(self._store, key, data)  # so that a member needs no right to replace anything
            return ObjectRef(key=key, size=len(data), blake3=blake3(data).hexdigest()).canonical()

        here = peers.rank == COORDINATOR
        stored = attempt.run(store, b"") if here else b""
        stored = peers.broadcast(stored if here else None, "contribution's object")
        attempt.agree("contribution")
        [entries] = sum_lanes(peers, (sum(len(part.index) for _, part in sent),), "entries")
        ref = ObjectRef.parse(stored) if stored else None
        self._own = None if ref is None else (ref, sent)
        return entries, ref

    def get(self, weights: HoldsVersion, record: ContributeRecord, values: Values, weight: int) -> Sent:
        """Fetch a contribution to the round that begins with these weights, and decode what is at home; a collective.

        What was put here last, by its hash, is at hand once more, and neither fetched nor decoded.

        Args:
            weights: of the round's start.
            record: of the contribution.
            values: that the rounds are of.
            weight: of the member.

        Raises:
            CorruptObject: on all ranks: it is damaged, or not what the record says.
            BaseMismatch: it was made from other weights.
            NotFound, StoreUnavailable: as the store.
        """
        if record.object is None:
            return []
        own, ref = self._own, record.object
        if own is not None and own[0] == ref:
            self._own = None
            return [(group, replace(part, weight=weight)) for group, part in own[1]]
        peers = weights.peers
        attempt, nothing = Attempt(peers), [b""] * weights.peers.size
        parts = nothing
        if peers.rank == COORDINATOR:
            parts = attempt.run(lambda: self._fetched(ref, record, values, weights.homes), nothing)
        came = peers.exchange(parts, "groups of a contribution")[COORDINATOR]
        sent = attempt.run(lambda: self._decoded(weights, record, values, weight, came), list[tuple[Group, Part]]())
        attempt.agree("contribution")
        return sent

    def put_merged(
        self,
        weights: HoldsVersion,
        base: str,
        round_: int,
        exponent: int,
        totals: Mapping[int, GroupTotals],
        below: int,
    ) -> ObjectRef | None:
        """Store the totals of a round, once they are read back as they are; return what a record says of them.

        None: they do not take fewer bytes than ``below``, and nothing was stored. By one rank.

        Raises:
            CorruptObject: what was coded is something else; nothing was stored.
            StoreUnavailable, AccessDenied: as ``put``.
        """
        groups = [(self._geometry.groups[number], part) for number, part in sorted(totals.items())]
        parts = [(group, part.index, part.totals) for group, part in groups]
        data = merged_bytes(
            self._backend, self._geometry, base, round_, exponent, parts, lambda group: [weights.version_cells(group)]
        )
        if len(data) >= below:
            return None
        key = keys.merged_key(round_, self._new_id())
        stored = ObjectRef(key=key, size=len(data), blake3=blake3(data).hexdigest())
        found = self._totals(weights, Merged.parse(stored, self._geometry, data))
        same = found.keys() == totals.keys() and all(
            np.array_equal(found[number].index, part.index) and np.array_equal(found[number].totals, part.totals)
            for number, part in totals.items()
        )
        if not same:
            raise CorruptObject(f"the totals of outer round {round_} are others once they are coded; not stored")
        create(self._store, key, data)
        return stored

    def get_merged(self, weights: HoldsVersion, record: MergedRecord) -> dict[int, GroupTotals]:
        """Fetch the totals of the round that begins with these weights, and decode what is at home; a collective.

        Raises:
            CorruptObject: on all ranks: they are damaged, or not what the record says.
            BaseMismatch: they were coded by other weights.
            NotFound, StoreUnavailable: as the store.
        """
        peers = weights.peers
        attempt, parts = Attempt(peers), [b""] * peers.size
        if peers.rank == COORDINATOR:
            parts = attempt.run(lambda: self._fetched_merged(record, weights.homes), parts)
        came = peers.exchange(parts, "groups of totals")[COORDINATOR]
        totals = attempt.run(lambda: self._decoded_merged(weights, record, came), dict[int, GroupTotals]())
        attempt.agree("totals")
        return totals

    def _fetched_merged(self, record: MergedRecord, homes: Sequence[Collection[int]]) -> list[bytes]:
        key, most = record.object.key, most_merged_bytes(self._geometry)
        if record.object.size > most:
            raise CorruptObject(
                f"{key}: record {record.seq} says that it has {record.object.size:,} bytes, and it has {most:,} at most"
            )
        found = Merged.parse(record.object, self._geometry, self._store.get(key, max_bytes=record.object.size))
        said = (found.head.round, found.head.exponent, found.head.changed)
        if said != (record.round, record.exponent, record.entries):
            raise CorruptObject(f"{key}: they are not the totals that record {record.seq} names")
        head = found.head.canonical()
        return [len(head).to_bytes(8, "little") + head + _packed(found.coded(numbers)) for numbers in homes]

    def _decoded_merged(self, weights: HoldsVersion, record: MergedRecord, came: memoryview) -> dict[int, GroupTotals]:
        end = 8 + int.from_bytes(came[:8], "little")
        head = MergedHead.parse(bytes(came[8:end]))
        return self._totals(weights, Merged.of_groups(record.object.key, head, _unpacked(came[end:])))

    def _totals(self, weights: HoldsVersion, found: Merged) -> dict[int, GroupTotals]:
        totals = {}
        for number in found.entries:
            group = self._geometry.groups[number]
            totals[number] = GroupTotals(*found.decode(self._backend, group, [weights.version_cells(group)]))
        return totals

    def _coded(self, weights: OuterWeights, sent: Sent) -> list[Coded]:
        def code(one: tuple[Group, Part]) -> Coded:
            group, part = one
            cells = part.levels if isinstance(part, GroupLevels) else part.values
            return code_levels(self._backend, group, part.index, cells, [weights.version_cells(group)])

        return [*weights.each(code, sent)]

    def _fetched(
        self, ref: ObjectRef, record: ContributeRecord, values: Values, homes: Sequence[Collection[int]]
    ) -> list[bytes]:
        """Fetch and check an object; return what is at home at each rank."""
        key, most = ref.key, most_bytes(self._geometry)
        if ref.size > most:
            raise CorruptObject(
                f"{key}: record {record.seq} says that it has {ref.size:,} bytes, and it has {most:,} at most"
            )
        found = Contribution.parse(ref, self._geometry, self._store.get(key, max_bytes=ref.size))
        if found.head.values != values or not is_head_of(found.head, record):
            raise CorruptObject(f"{key}: it is not the contribution that record {record.seq} names")
        return [_packed(found.coded(numbers)) for numbers in homes]

    def _decoded(
        self, weights: HoldsVersion, record: ContributeRecord, values: Values, weight: int, came: memoryview
    ) -> list[tuple[Group, Part]]:
        key = "" if record.object is None else record.object.key
        found = Contribution.of_groups(key, head_of(record, self._geometry, values), _unpacked(came))

        def part(number: int) -> tuple[Group, Part]:
            group = self._geometry.groups[number]
            index, cells = found.decode(self._backend, group, [weights.version_cells(group)])
            if cells.dtype == np.float32:
                return group, GroupValues(index, cells.view(np.float32), weight)
            return group, GroupLevels(index, cells.view(np.int16), record.exponent, weight)

        return [*weights.each(part, found.entries)]


def _packed(coded: Sequence[Coded]) -> bytes:
    """Return coded groups as ranks send them: how many, their entries, their bytes."""
    entries = Directory.of(one.entry for one in coded).to_bytes()
    return b"".join((len(coded).to_bytes(8, "little"), entries, *(one.data for one in coded)))


def _unpacked(data: bytes | memoryview) -> list[Coded]:
    view = memoryview(data)
    if not view:
        return []
    at = 8 + ENTRY_BYTES * int.from_bytes(view[:8], "little")
    coded = []
    for entry in Directory.parse("contribution", bytes(view[8:at])).values():
        coded.append(Coded(entry, bytes(view[at : at + entry.size])))
        at += entry.size
    return coded


def head_of(record: ContributeRecord, geometry: Geometry, values: Values) -> ContributionHead:
    """Return what the object of a record says of itself, but for how many groups it has."""
    return ContributionHead(
        layout=geometry.id,
        base=record.base,
        round=record.round,
        member=record.member,
        values=values,
        exponent=record.exponent,
        changed=record.entries,
        groups=0,
    )


def is_head_of(head: ContributionHead, record: ContributeRecord) -> bool:
    """Tell whether an object says of itself what a record says of it."""
    said = (head.base, head.round, head.member, head.exponent, head.changed)
    return said == (record.base, record.round, record.member, record.exponent, record.entries)
