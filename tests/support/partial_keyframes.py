"""Keyframes to be read in part: what is stored, which pieces hold what is wanted, and what was handed over."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from blake3 import blake3

from pulse_kernels import CELL_TYPES, Cells
from pulse_registry.errors import CorruptObject
from pulse_registry.format.keyframe import KeyframeForm, write_keyframe
from pulse_registry.format.safetensors import parse_head
from pulse_registry.pull.keyframe_slices import fetch_cells
from pulse_registry.store import MOST_WHOLE_BYTES, Buffer, ByteRange, Store
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import KeyframeRef, Layout, ObjectRef, Tensor
from pulse_schemas.layout import DTYPE_ORDER, Dtype
from tests.support.groups import small_groups
from tests.support.records import DictStore, write_id

PIECE = 4096
Masks = list[np.ndarray[Any, np.dtype[np.bool_]]]
Damage = Callable[[str, ByteRange, bytes], bytes]


class Recording(DictStore):
    """A store that notes the ranges that are read, and may be told what to make of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[str, ByteRange]] = []
        self.answer: Damage = lambda key, byte_range, data: data

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        assert byte_range is not None, "what may be long is read by ranges"
        self.ranges.append((key, byte_range))
        return self.answer(key, byte_range, super().get(key, byte_range))

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        data = self.get(key, byte_range)
        if len(data) != len(memoryview(buffer)):
            raise CorruptObject(f"{key}: {len(data)} bytes came")
        memoryview(buffer)[:] = data


class Taken:
    """What was handed over: the cells, and how often each of them was."""

    def __init__(self, geometry: Geometry) -> None:
        self._mutex = threading.Lock()
        types = [CELL_TYPES[tensor.dtype].dtype for tensor in geometry.layout.tensors]
        self.cells = [np.zeros(size, dtype) for size, dtype in zip(geometry.sizes, types, strict=True)]
        self.times = [np.zeros(size, np.int64) for size in geometry.sizes]

    def take(self, tensor: int, start: int, cells: Cells) -> None:
        whole = self.cells[tensor]
        assert (cells.ndim, cells.dtype) == (1, whole.dtype)
        assert len(cells)
        assert cells.flags.aligned
        assert cells.flags.c_contiguous
        assert not cells.flags.writeable
        with self._mutex:
            whole[start : start + len(cells)] = cells
            self.times[tensor][start : start + len(cells)] += 1


class Stored:
    """A keyframe, and the same as plain shards, where the tests look up what lies where."""

    def __init__(self, tensors: list[tuple[Dtype, tuple[int, ...]]], form: KeyframeForm, seed: int = 1) -> None:
        layout = sorted(tensors, key=lambda tensor: DTYPE_ORDER.index(tensor[0]))
        named = [Tensor(name=f"t{n:02}", dtype=dtype, shape=shape) for n, (dtype, shape) in enumerate(layout)]
        rng = np.random.default_rng(seed)
        with small_groups(1 << 12):
            self.geometry = Geometry(Layout(tensors=tuple(named)))
        self.cells = [
            np.frombuffer(rng.bytes(self.geometry.tensor_bytes(n)), CELL_TYPES[tensor.dtype].dtype)
            for n, tensor in enumerate(named)
        ]
        self.store, self.form = Recording(), form
        self.ref = self._write(self.store, form)
        plain = DictStore()
        ref = self._write(plain, KeyframeForm("raw", form.shard_bytes, form.piece_bytes))
        self.plain = [plain.objects[shard.key] for shard in ref.shards]

    def _write(self, store: DictStore, form: KeyframeForm) -> KeyframeRef:
        weights = Weights(self.geometry, self.cells)
        return write_keyframe(store, self.geometry, 3, write_id(7), weights.copy_of, form=form, backend="reference")

    def masks(self, *runs: tuple[int, int, int]) -> Masks:
        """Return the wanted cells: runs of a tensor's, and of nothing else."""
        masks = [np.zeros(size, np.bool_) for size in self.geometry.sizes]
        for tensor, start, stop in runs:
            masks[tensor][start:stop] = True
        return masks

    def fetch(self, masks: Masks, map_: Any = map, store: Store | None = None) -> tuple[Taken, int]:
        """Fetch the wanted cells; each of them came once, and all that came is right."""
        taken = Taken(self.geometry)
        self.store.ranges.clear()

        def wanted(tensor: int, start: int, stop: int) -> bool:
            assert 0 <= start < stop <= self.geometry.sizes[tensor]
            return bool(masks[tensor][start:stop].any())

        nbytes = fetch_cells(store or self.store, self.geometry, self.ref, wanted, taken.take, map_)
        for cells, came, times, mask in zip(self.cells, taken.cells, taken.times, masks, strict=True):
            assert times.max(initial=0) <= 1
            assert times[mask].all()
            assert cells[times == 1].tobytes() == came[times == 1].tobytes()
        return taken, nbytes

    def expected(self, masks: Masks) -> list[tuple[str, ByteRange]]:
        """Return the pieces that hold a byte of a wanted cell: by the headers of the plain files, byte by byte."""
        found: list[tuple[str, ByteRange]] = []
        number_of = {tensor.name: n for n, tensor in enumerate(self.geometry.layout.tensors)}
        for shard, data in zip(self.ref.shards, self.plain, strict=True):
            header, asked = parse_head(data, len(data)), np.zeros(len(data), np.bool_)
            for name, place in header.tensors.items():
                mask = masks[number_of[name]]
                if len(mask):
                    width = (place.stop - place.start) // len(mask)
                    asked[header.nbytes + place.start : header.nbytes + place.stop] = np.repeat(mask, width)
            for number, (start, stop) in enumerate(self._stored(shard.key, shard.size)):
                piece = self.form.piece_bytes
                if asked[number * piece : (number + 1) * piece].any():
                    found.append((shard.key, (start, stop)))
        return found

    def _stored(self, key: str, size: int) -> list[ByteRange]:
        coding = self.index()["metadata"]["pulse"].get("coding")
        if coding is None:
            piece = self.form.piece_bytes
            return [(at, min(at + piece, size)) for at in range(0, size, piece)]
        sizes = coding["shards"][key.rpartition("/")[2]]["sizes"]
        ends = [size - sum(sizes[number + 1 :]) for number in range(len(sizes))]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def index(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.store.objects[self.ref.index.key])
        return document

    def commit(self, index: dict[str, Any] | bytes) -> None:
        """Commit another index."""
        data = index if isinstance(index, bytes) else json.dumps(index).encode()
        self.store.objects[self.ref.index.key] = data
        ref = ObjectRef(key=self.ref.index.key, size=len(data), blake3=blake3(data).hexdigest())
        self.ref = self.ref.model_copy(update={"index": ref})

    def without_pieces(self) -> None:
        """Commit an index that knows shards as wholes alone."""
        index = self.index()
        del index["metadata"]["pulse"]["pieces"]
        self.commit(index)

    def change_shard(self, number: int, data: bytes) -> None:
        """Commit other bytes of a shard."""
        key = self.ref.shards[number].key
        self.store.objects[key] = data
        ref = ObjectRef(key=key, size=len(data), blake3=blake3(data).hexdigest())
        shards = (*self.ref.shards[:number], ref, *self.ref.shards[number + 1 :])
        self.ref = self.ref.model_copy(update={"shards": shards})
        index = self.index()
        pieces = index["metadata"]["pulse"]["pieces"]
        cuts = range(0, len(data), pieces["size"])
        pieces["blake3"][key.rpartition("/")[2]] = [blake3(data[at : at + pieces["size"]]).hexdigest() for at in cuts]
        self.commit(index)
