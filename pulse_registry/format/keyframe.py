"""Keyframes: all cells of a version as an ordinary Hugging Face checkpoint, streamed in both directions.

Tensors lie in layout order in ``model-0000k-of-0000n.safetensors``; ``model.safetensors.index.json`` maps names to
shards, and holds the BLAKE3 of their pieces. Tied names are left out, as ``save_pretrained`` does; the layout has them.
The shards of a coded keyframe are smaller files of the same names, which only this library reads (see ``coding``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from blake3 import blake3

from pulse_kernels import Cells
from pulse_kernels.select import exponent_loops
from pulse_registry.errors import CorruptObject, InvalidModel
from pulse_registry.format.exponent_coding import CodedStream, KeyframeCoding, parts_of
from pulse_registry.format.keys import keyframe_key
from pulse_registry.format.pieces import MOST_INDEX_BYTES, PIECE_BYTES, Coding, PieceHasher, Pieces, ShardCoding
from pulse_registry.format.safetensors import header_bytes, tensor_entry
from pulse_registry.store import Store, Stream, create
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import KeyframeRef, ObjectRef, Schema, canonical_json
from pulse_schemas.base import Hash, Many

SHARD_BYTES = 1 << 30
"""A shard takes tensors until the next one would take it past this size."""
MOST_SHARDS = 36_000
"""Of a keyframe: each takes up to 209 bytes of the record, which has at most 8 MiB."""
_PIECE_IN_INDEX, _NAME_IN_INDEX, _INDEX_BESIDES = 80, 64, 512
"""Bytes in an index, at most: of a piece, its hash and size; of a tensor, beside its name; of a shard besides."""
INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class KeyframeForm:
    """How a keyframe's files are coded and cut.

    Attributes:
        coding: ``exponents`` makes smaller shards; it takes the memory of a few pieces and reads the cells twice.
        shard_bytes: limit of a shard; a larger tensor has a shard of its own.
        piece_bytes: of what a plain shard's pieces are, which readers fetch and check one by one; even.
    """

    coding: KeyframeCoding = "raw"
    shard_bytes: int = SHARD_BYTES
    piece_bytes: int = PIECE_BYTES


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive tensors of a layout in one file: tensor numbers ``first`` to ``last``, and its exact header."""

    name: str
    first: int
    last: int
    header: bytes
    data_bytes: int

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.header) + self.data_bytes


def shards_of(geometry: Geometry, shard_bytes: int = SHARD_BYTES, suffix: str = "") -> list[Shard]:
    """Cut a layout into shards; ``suffix`` goes into their names before ``.safetensors``."""
    cuts, held = [0], 0
    for number in range(len(geometry.sizes)):
        size = geometry.tensor_bytes(number)
        if held and held + size > shard_bytes:
            cuts.append(number)
            held = 0
        held += size
    cuts.append(len(geometry.sizes))
    names = [f"model-{k:05d}-of-{len(cuts) - 1:05d}{suffix}.safetensors" for k in range(1, len(cuts))]
    return [shard_of(geometry, *parts) for parts in zip(names, cuts[:-1], cuts[1:], strict=True)]


def shard_of(geometry: Geometry, name: str, first: int, last: int, metadata: Mapping[str, str] | None = None) -> Shard:
    """Return the file that holds the layout's tensors ``first`` to ``last``; ``metadata`` go into its header, too."""
    document: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    at = 0
    for number in range(first, last):
        tensor, size = geometry.layout.tensors[number], geometry.tensor_bytes(number)
        document[tensor.name] = tensor_entry(tensor.dtype, tensor.shape, at, at + size)
        at += size
    return Shard(name, first, last, header_bytes(document), at)


def index_document(geometry: Geometry, shards: list[Shard], metadata: dict[str, Any]) -> bytes:
    """Return the bytes of the checkpoint's index file."""
    weight_map = {
        geometry.layout.tensors[number].name: shard.name
        for shard in shards
        for number in range(shard.first, shard.last)
    }
    return canonical_json({"metadata": {"total_size": geometry.nbytes, **metadata}, "weight_map": weight_map})


def pulse_metadata(geometry: Geometry, version: int, pieces: Pieces, coding: Coding | None = None) -> dict[str, Any]:
    """Return what the index of a stored keyframe says beside the names of tensors."""
    about = {"layout": geometry.id, "version": version, "pieces": pieces.model_dump(mode="json")}
    if coding is not None:
        about["coding"] = coding.model_dump(mode="json")
    return {"pulse": about}


class _ShardStream(Stream):
    """A shard's bytes, chunk by chunk, hashed as they go; may be iterated again (a put that is retried)."""

    def __init__(self, geometry: Geometry, shard: Shard, cells_of: Callable[[Group], Cells], piece_bytes: int) -> None:
        self.nbytes = shard.nbytes
        self.blake3 = ""
        self.pieces: tuple[str, ...] = ()
        self._geometry, self._shard, self._cells_of = geometry, shard, cells_of
        self._piece_bytes = piece_bytes

    def __iter__(self) -> Iterator[memoryview]:
        hasher = PieceHasher(self._piece_bytes)
        for chunk in self.chunks():
            hasher.update(chunk)
            yield chunk
        self.blake3, self.pieces = hasher.whole(), hasher.pieces()

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes and hash nothing."""
        yield memoryview(self._shard.header)
        for group in self._geometry.groups:
            inside = [s for s in group.spans if self._shard.first <= s.tensor < self._shard.last]
            if not inside:
                continue
            before = sum(s.stop - s.start for s in group.spans if s.tensor < self._shard.first)
            size = sum(s.stop - s.start for s in inside)
            cells = self._cells_of(group)[before : before + size]
            yield memoryview(cells.view(np.uint8).data)


def write_keyframe(
    store: Store,
    geometry: Geometry,
    version: int,
    write_id: str,
    cells_of: Callable[[Group], Cells],
    *,
    form: KeyframeForm = KeyframeForm(),
    backend: str = "auto",
    map_: Callable[..., Iterator[Any]] = map,
) -> KeyframeRef:
    """Store all cells of a version; memory stays within a group's cells, whatever the size of the model.

    Args:
        store: scoped to the run.
        geometry: of the version's layout.
        version: goes into the keys, as does ``write_id``.
        write_id: new for every write.
        cells_of: returns a group's cells as one array, which nothing changes until the next call.
        form: how its files are coded and cut.
        backend: its name: what codes.
        map_: ``map``, or an executor's, to code pieces side by side.

    Raises:
        InvalidModel: readers would take neither the record nor the index of so many shards; nothing was written.
        Conflict: the cells changed while they were coded.
        StoreUnavailable: as the store.
    """
    shards = planned_shards(geometry, form)
    stored = [
        write_shard(store, geometry, shard, keyframe_key(version, write_id, shard.name), cells_of, form, backend, map_)
        for shard in shards
    ]
    return write_index(store, geometry, version, write_id, stored, form)


class StoredShard(Schema):
    """One shard of a keyframe that was stored: what the record and the index say of it."""

    ref: ObjectRef
    pieces: Many[Hash]
    coding: ShardCoding | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return self.ref.key.rpartition("/")[2]


def planned_shards(geometry: Geometry, form: KeyframeForm) -> list[Shard]:
    """Return the shards of a keyframe that is to be written.

    Raises:
        InvalidModel: readers would take neither the record nor the index of so many shards.
    """
    shards = shards_of(geometry, form.shard_bytes)
    _check_readable(geometry, shards, form.piece_bytes)
    return shards


def write_shard(
    store: Store,
    geometry: Geometry,
    shard: Shard,
    key: str,
    cells_of: Callable[[Group], Cells],
    form: KeyframeForm,
    backend: str,
    map_: Callable[..., Iterator[Any]],
) -> StoredShard:
    """Store one shard; see ``write_keyframe``. ``cells_of`` is asked for the groups that it holds cells of."""
    plain = _ShardStream(geometry, shard, cells_of, form.piece_bytes)
    stream: _ShardStream | CodedStream = plain
    coding = None
    if form.coding == "exponents":
        parts = parts_of(geometry, shard.first, shard.last, len(shard.header), form.piece_bytes)
        stream = CodedStream(shard.name, parts, plain.chunks, exponent_loops(backend), map_)
        coding = ShardCoding(tensors=shard.last - shard.first, sizes=stream.sizes)
    create(store, key, stream)
    ref = ObjectRef(key=key, size=stream.nbytes, blake3=stream.blake3)
    return StoredShard(ref=ref, pieces=stream.pieces, coding=coding)


def write_index(
    store: Store, geometry: Geometry, version: int, write_id: str, stored: Sequence[StoredShard], form: KeyframeForm
) -> KeyframeRef:
    """Store the index of a keyframe whose shards were stored; return what a record says of it."""
    coded = {shard.name: shard.coding for shard in stored if shard.coding is not None}
    about = Coding(shards=coded) if form.coding == "exponents" else None
    pieces = Pieces(size=form.piece_bytes, blake3={shard.name: shard.pieces for shard in stored})
    shards = shards_of(geometry, form.shard_bytes)
    index = index_document(geometry, shards, pulse_metadata(geometry, version, pieces, about))
    key = keyframe_key(version, write_id, INDEX_NAME)
    create(store, key, index)
    index_ref = ObjectRef(key=key, size=len(index), blake3=blake3(index).hexdigest())
    return KeyframeRef(version=version, index=index_ref, shards=tuple(shard.ref for shard in stored))


def _check_readable(geometry: Geometry, shards: Sequence[Shard], piece_bytes: int) -> None:
    """Check that readers will take what a keyframe's record and index will be, before anything is written."""
    if len(shards) > MOST_SHARDS:
        raise InvalidModel(f"a keyframe has at most {MOST_SHARDS:,} shards, and this one would have {len(shards):,}")
    pieces = sum(-(-shard.nbytes // piece_bytes) for shard in shards)
    names = sum(len(tensor.name.encode()) for tensor in geometry.layout.tensors)
    most = _PIECE_IN_INDEX * pieces + _NAME_IN_INDEX * len(geometry.sizes) + 2 * names + _INDEX_BESIDES * len(shards)
    if most > MOST_INDEX_BYTES:
        raise InvalidModel(f"a keyframe's index has at most {MOST_INDEX_BYTES:,} bytes, and this one up to {most:,}")


def check_shards(geometry: Geometry, ref: KeyframeRef, headers: list[bytes]) -> list[Shard]:
    """Return the shards of a stored keyframe, from the first bytes of each.

    A header must be, byte for byte, the one that the layout's next tensors give.

    Raises:
        CorruptObject: one is not, or tensors are missing.
    """
    shards: list[Shard] = []
    first = 0
    ends = list(accumulate(map(geometry.tensor_bytes, range(len(geometry.sizes))), initial=0))
    for stored, header in zip(ref.shards, headers, strict=True):
        # Nothing in the header is read but its length: with the file's size, that says which tensors these must be.
        length = 8 + int.from_bytes(header[:8], "little")
        end = ends[first] + stored.size - length
        low, high = bisect_left(ends, end, first), bisect_right(ends, end, first) - 1
        if not first <= low <= high:
            raise CorruptObject(f"{stored.key}: its header and its size do not fit any of the layout's next tensors")
        shard = _shard_between(geometry, stored.key.rpartition("/")[2], first, range(low, high + 1), length)
        if not header.startswith(shard.header) or shard.nbytes != stored.size:
            raise CorruptObject(f"{stored.key}: it is not the header of the layout's tensors from number {first} on")
        shards.append(shard)
        first = shard.last
    if first != len(geometry.sizes):
        raise CorruptObject(f"{ref.index.key}: the keyframe holds {first} of {len(geometry.sizes)} tensors")
    return shards


def _shard_between(geometry: Geometry, name: str, first: int, lasts: range, length: int) -> Shard:
    """Return the shard whose header is so long; of tensors that have no cells, sizes do not tell where it ends."""

    def shard(last: int) -> Shard:
        return shard_of(geometry, name, first, last)

    return shard(lasts[bisect_left(lasts[:-1], length, key=lambda last: len(shard(last).header))])
