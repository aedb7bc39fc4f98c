"""Coding of a patch: sparse updates become coded groups, and these a file. The same changes give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Self

from blake3 import blake3

from pulse_kernels import Backend, CoderName, Spans, encode_group
from pulse_registry.format.directory import Directory, Entry
from pulse_registry.format.patch_head import head_bytes
from pulse_registry.format.patch_parts import in_parts
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_schemas import ObjectRef, PatchHead, PatchRef

CoderChoice = Literal["auto", "gap", "class"]

_CLASS_NS_PER_CELL = 0.66
"""Time of class coding and decoding beyond gap's, a cell of the group, one core, BF16 (benchmarks/codec.py)."""
_CLASS_SAVES = 0.41
"""Share of gap's bytes that class saves (recorded steps: 13.5 against 7.8 bits a changed cell)."""
_LINK_BYTES_PER_NS = 0.125
"""1 Gbit/s, the link that ``auto`` weighs time against."""


@dataclass(frozen=True, slots=True)
class Coded:
    """One coded group, and its entry in the directory."""

    entry: Entry
    data: bytes


@dataclass(frozen=True, slots=True)
class PatchFile:
    """A coded patch, ready to be stored: ``head`` and ``groups`` end to end are the object, or the head and its parts.

    Attributes:
        parted: whether it is stored in parts.
    """

    head: bytes
    groups: tuple[bytes, ...]
    directory: Directory
    parted: bool
    base: int
    target: int
    coder: CoderName
    changed: int
    delta: Digest

    @classmethod
    def of(cls, geometry: Geometry, base: int, target: int, coded: Iterable[Coded]) -> Self:
        """Put coded groups, which come in group order, together to the patch from ``base`` to ``target``."""
        groups = list(coded)
        directory = Directory.of(group.entry for group in groups)
        return cls.of_directory(geometry, base, target, directory, tuple(group.data for group in groups))

    @classmethod
    def of_directory(
        cls, geometry: Geometry, base: int, target: int, directory: Directory, data: tuple[bytes, ...] = ()
    ) -> Self:
        """Put the patch from ``base`` to ``target`` together from its directory, and groups that are not yet stored."""
        changed = int(directory.changed.sum())
        head = PatchHead(layout=geometry.id, base=base, target=target, changed=changed, groups=len(directory))
        what = base, target, directory.coder, changed, directory.delta
        return cls(head_bytes(head, directory), data, directory, in_parts(geometry), *what)

    @property
    def nbytes(self) -> int:
        """Size of the object, or of the head and all parts."""
        return len(self.head) + int(self.directory.sizes.sum())

    def ref(self, key: str, groups: Iterable[bytes] | None = None) -> PatchRef:
        """Return what a record says of the patch once it is stored under ``key``.

        Args:
            key: of the object, or of the head of a patch in parts.
            groups: the bytes that follow the head, in any pieces, where they are kept elsewhere; not looked at of a
                patch in parts.
        """
        head, hasher, size = blake3(self.head).hexdigest(), blake3(self.head), len(self.head)
        for data in () if self.parted else self.groups if groups is None else groups:
            hasher.update(data)
            size += len(data)
        return PatchRef(
            base=self.base,
            target=self.target,
            coder=self.coder,
            changed=self.changed,
            object=ObjectRef(key=key, size=size, blake3=hasher.hexdigest()),
            head_size=len(self.head),
            head_blake3=head,
            parts=self.nbytes - size if self.parted else None,
        )


def code_change(
    backend: Backend,
    change: SparseUpdate,
    coder: CoderChoice,
    cells_of: Callable[[], AbstractContextManager[Spans]] | None,
    timeline: Timeline | None = None,
) -> Coded:
    """Code what changes in one group, which is not nothing.

    Args:
        backend: computes.
        change: from the base to the target.
        coder: ``auto`` takes the smaller one where the difference is worth the time.
        cells_of: lends the group's cells, at the base or at the target, for as long as its block runs; without it only
            ``gap`` is possible.
        timeline: notes the phases ``code`` and ``hash``.
    """
    group, clock = change.group, timeline or Timeline()
    began = clock.clock()

    def as_(name: CoderName, cells: Spans | None = None) -> bytes:
        values = change.old, change.new
        return encode_group(backend, name, group.cell_type, group.cells, change.index, *values, cells)

    def as_class() -> bytes:
        with nullcontext() if cells_of is None else cells_of() as cells:
            return as_("class", cells)

    name: CoderName = "gap" if coder == "auto" else coder
    data = as_("gap") if name == "gap" else as_class()
    if coder == "auto" and cells_of is not None and class_pays(group.cells, len(data)):
        name, data = min((name, data), ("class", as_class()), key=lambda found: len(found[1]))
    coded = clock.clock()
    clock.note("code", began, coded, nbytes=len(data))
    digest = blake3(data).digest()
    entry = Entry(group.number, len(change.index), len(data), name, digest, *change.sums(backend))
    clock.note("hash", coded, nbytes=len(data))
    return Coded(entry, data)


def class_pays(cells: int, gap_bytes: int) -> bool:
    """Tell whether ``auto`` tries ``class`` on a group of so many cells that takes so many bytes with ``gap``.

    ADR 0004: the bytes that class would save, in time on the link, against its time at both ends.
    """
    return gap_bytes * _CLASS_SAVES / _LINK_BYTES_PER_NS > cells * _CLASS_NS_PER_CELL
