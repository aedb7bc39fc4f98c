"""Keyframes: ordinary checkpoints, cut into shards, streamed, and refused where they are not what was committed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from blake3 import blake3
from safetensors import safe_open
from safetensors.numpy import load_file

from pulse_kernels import Cells, get_backend
from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.format.keyframe import INDEX_NAME, KeyframeForm, check_shards, shards_of, write_keyframe
from pulse_registry.format.safetensors import parse_head
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.store import Body, FileStore, Store, body_views
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.model import layout_of, read_model
from pulse_schemas import KeyframeRef, ObjectRef
from tests.support.groups import geometry_of, mixed_model, numbered
from tests.support.records import DictStore

WRITE_ID = "0" * 31 + "7"
NUMBA = get_backend("numba")
FOLDER = f"objects/keyframe/000000000003-{WRITE_ID}"
Model = dict[str, np.ndarray[Any, Any]]


def plain(geometry: Geometry, model: Model) -> Weights:
    views = read_model(model)
    return Weights(geometry, [views[tensor.name].cells.copy() for tensor in geometry.layout.tensors])


def write(
    store: Store, model: Model, shard_bytes: int = 1 << 30, group_bytes: int = 64
) -> tuple[Geometry, KeyframeRef]:
    geometry = geometry_of(model, group_bytes=group_bytes)
    return geometry, write_keyframe(
        store, geometry, 3, WRITE_ID, plain(geometry, model).copy_of, form=KeyframeForm(shard_bytes=shard_bytes)
    )


def fetched(store: Store, geometry: Geometry, ref: KeyframeRef) -> list[bytes]:
    """Return the cells of each tensor as they are read back."""
    keyframe = KeyframeCells.fetch(store, geometry, ref, map, None)
    try:
        return [array.tobytes() for array in keyframe.weights.arrays]
    finally:
        keyframe.close()


def expected(geometry: Geometry, model: Model) -> list[bytes]:
    return [model[tensor.name].tobytes() for tensor in geometry.layout.tensors]


STORES: dict[str, Callable[[Path], Store]] = {"memory": lambda path: DictStore(), "files": FileStore}
by_store = pytest.mark.parametrize("kind", STORES)


# -- what is written ---------------------------------------------------------------------------------------------------


def test_a_keyframe_opens_as_a_checkpoint_through_its_index(tmp_path: Path):
    model = mixed_model() | {"bf16": numbered((6, 5), 0x3F80).view(ml_dtypes.bfloat16)}
    _, ref = write(FileStore(tmp_path), model, shard_bytes=100)
    folder = tmp_path / FOLDER
    index = json.loads((folder / INDEX_NAME).read_bytes())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in model.values())
    assert set(index["weight_map"]) == set(model)
    assert set(index["weight_map"].values()) == {p.name for p in folder.glob("*.safetensors")}
    assert len(ref.shards) == len(set(index["weight_map"].values())) > 1
    for name, file in index["weight_map"].items():
        with safe_open(folder / file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            assert name in opened.keys()  # noqa: SIM118 - safe_open is no mapping
            assert tuple(opened.get_slice(name).get_shape()) == model[name].shape
    loaded: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        loaded |= load_file(file)
    assert set(loaded) == set(model)
    for name, array in model.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].tobytes() == array.tobytes()


def test_a_keyframe_of_small_floats_opens_in_torch_with_the_shapes_that_it_has_there(tmp_path: Path):
    scales = torch.arange(256, dtype=torch.uint8).reshape(16, 16).view(torch.float8_e8m0fnu)
    pairs = torch.arange(30, dtype=torch.uint8).reshape(2, 5, 3).view(torch.float4_e2m1fn_x2)
    write(FileStore(tmp_path), {"scales": scales, "pairs": pairs, "none": pairs[:0], "w": torch.ones(3).bfloat16()})
    (path,) = (tmp_path / FOLDER).glob("*.safetensors")
    header = parse_head(path.read_bytes(), path.stat().st_size).tensors
    assert list(header) == ["w", "scales", "none", "pairs"]
    assert (header["scales"].dtype, header["scales"].shape) == ("F8_E8M0", (16, 16))
    assert (header["pairs"].dtype, header["pairs"].shape) == ("F4", (2, 5, 6)), "elements, of which two are a cell"
    loaded = safetensors.torch.load_file(path)
    for name, tensor in (("scales", scales), ("pairs", pairs), ("none", pairs[:0])):
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))


def test_the_references_describe_the_stored_bytes():
    store = DictStore()
    _, ref = write(store, mixed_model(), shard_bytes=100)
    assert ref.version == 3
    stored = {object_.key: object_ for object_ in (ref.index, *ref.shards)}
    assert set(stored) == set(store.objects)
    for key, data in store.objects.items():
        assert key.startswith(FOLDER)
        assert (stored[key].size, stored[key].blake3) == (len(data), blake3(data).hexdigest())


def test_the_same_cells_give_the_same_bytes_however_they_are_grouped():
    first, second = DictStore(), DictStore()
    write(first, mixed_model(), shard_bytes=100, group_bytes=64)
    write(second, dict(reversed(mixed_model().items())), shard_bytes=100, group_bytes=1 << 20)
    assert first.objects == second.objects


@pytest.mark.parametrize(
    ("limit", "shards"),
    [
        (1, [["f"], ["e"], ["a"], ["b", "c"], ["d"], ["g"]]),
        (100, [["f", "e"], ["a", "b"], ["c"], ["d", "g"]]),
        (102, [["f", "e"], ["a", "b"], ["c", "d"], ["g"]]),
        (146, [["f", "e", "a", "b"], ["c", "d"], ["g"]]),
        (172, [["f", "e", "a", "b"], ["c", "d", "g"]]),
        (318, [["f", "e", "a", "b", "c", "d", "g"]]),
    ],
)
def test_a_shard_takes_tensors_until_the_next_would_take_it_past_the_limit(limit: int, shards: list[list[str]]):
    store = DictStore()
    geometry, ref = write(store, mixed_model(), shard_bytes=limit)
    names = [t.name for t in geometry.layout.tensors]
    cut = shards_of(geometry, limit)
    assert [names[shard.first : shard.last] for shard in cut] == shards
    assert [Path(object_.key).name for object_ in ref.shards] == [
        f"model-{k:05d}-of-{len(shards):05d}.safetensors" for k in range(1, len(shards) + 1)
    ]
    assert [shard.nbytes for shard in cut] == [object_.size for object_ in ref.shards]
    for shard, members in zip(cut, shards, strict=True):
        assert shard.data_bytes <= limit or len([m for m in members if mixed_model()[m].size]) == 1
    assert fetched(store, geometry, ref) == expected(geometry, mixed_model())


def test_a_tensor_over_the_limit_has_a_shard_of_its_own():
    model = {"a": numbered((10,), 1), "b": numbered((1000,), 5), "c": numbered((10,), 9)}
    store = DictStore()
    geometry, ref = write(store, model, shard_bytes=100)
    assert [(s.first, s.last) for s in shards_of(geometry, 100)] == [(0, 1), (1, 2), (2, 3)]
    assert fetched(store, geometry, ref) == expected(geometry, model)


def test_data_begin_at_a_multiple_of_eight_so_that_wide_cells_are_aligned():
    for length in range(1, 20):
        geometry = geometry_of({"w" * length: numbered((3,), 0, "u8"), "v": numbered((3,), 0, "u1")})
        for shard in shards_of(geometry, 1):
            assert len(shard.header) % 8 == 0


def test_tied_names_are_left_out():
    weight = numbered((4,), 1)
    store = DictStore()
    geometry, ref = write(store, {"a": weight, "b": weight})
    assert json.loads(store.objects[ref.index.key])["weight_map"] == {"a": "model-00001-of-00001.safetensors"}
    assert fetched(store, geometry, ref) == [weight.tobytes()]


@by_store
def test_a_model_without_cells_is_a_keyframe_too(kind: str, tmp_path: Path):
    model = {"a": numbered((0, 3), 0), "b": numbered((0,), 0, "u8")}
    store = STORES[kind](tmp_path)
    geometry, ref = write(store, model)
    assert fetched(store, geometry, ref) == [b"", b""]


@by_store
@pytest.mark.parametrize("limit", [1, 50, 1 << 20])
def test_what_is_written_is_read_back(kind: str, limit: int, tmp_path: Path):
    store = STORES[kind](tmp_path)
    geometry, ref = write(store, mixed_model(), shard_bytes=limit)
    assert fetched(store, geometry, ref) == expected(geometry, mixed_model())


# -- memory and retries ------------------------------------------------------------------------------------------------


class Sink(DictStore):
    """A store that keeps only sizes and hashes, and reads each stream as often as it is told."""

    def __init__(self, readings: int = 1) -> None:
        super().__init__()
        self.readings = readings
        self.seen: dict[str, list[tuple[int, str]]] = {}
        self.largest = 0

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        for _ in range(self.readings):
            hasher, size = blake3(), 0
            for view in body_views(data):
                hasher.update(view)
                size += len(view)
                self.largest = max(self.largest, len(view))
            self.seen.setdefault(key, []).append((size, hasher.hexdigest()))


@pytest.mark.parametrize("shard_bytes", [3 << 20, 1 << 30], ids=["shards", "one shard"])
def test_a_keyframe_is_streamed_within_the_memory_of_two_groups(shard_bytes: int):
    group = 1 << 20
    model = {f"t{n}": np.zeros((2_100_000 // (n + 1),), np.uint8) for n in range(12)}
    geometry = geometry_of(model, group_bytes=group)
    assert geometry.nbytes > 6 * group
    weights, sink = plain(geometry, model), Sink()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        write_keyframe(sink, geometry, 3, WRITE_ID, weights.copy_of, form=KeyframeForm(shard_bytes=shard_bytes))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert sink.largest <= group
    assert peak < 2.2 * group


def test_a_put_that_begins_anew_gives_the_same_bytes_and_the_hash_of_a_whole_reading():
    once, thrice = Sink(), Sink(readings=3)
    _, ref = write(once, mixed_model(), shard_bytes=100)
    _, again = write(thrice, mixed_model(), shard_bytes=100)
    assert ref == again
    for key, readings in thrice.seen.items():
        assert readings == once.seen[key] * 3


class CutOff(DictStore):
    """A store whose first reading of a stream stops after some buffers, as a connection that is lost."""

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if not isinstance(data, bytes):
            iterator: Iterator[Any] = iter(body_views(data))
            for _ in range(2):
                next(iterator)
        super().put(key, data, if_absent=if_absent)


def test_a_reading_that_was_cut_off_does_not_show_in_the_hash():
    store = CutOff()
    geometry, ref = write(store, mixed_model())
    assert ref.shards[0].blake3 == blake3(store.objects[ref.shards[0].key]).hexdigest()
    assert fetched(store, geometry, ref) == expected(geometry, mixed_model())


def test_each_group_is_asked_for_in_order_and_only_by_the_shards_that_hold_it():
    model = {"a": numbered((64,), 0), "b": numbered((64,), 7)}
    geometry, asked = geometry_of(model), []

    def cells_of(group: Group) -> Cells:
        asked.append(group.number)
        return plain(geometry, model).copy_of(group)

    write_keyframe(DictStore(), geometry, 0, WRITE_ID, cells_of, form=KeyframeForm(shard_bytes=128))
    assert asked == [0, 1, 2, 3]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stored() -> tuple[DictStore, Geometry, KeyframeRef]:
    store = DictStore()
    return store, *write(store, mixed_model(), shard_bytes=150)


def headers(store: DictStore, ref: KeyframeRef) -> list[bytes]:
    return [store.objects[shard.key] for shard in ref.shards]


def committed_as(store: DictStore, ref: KeyframeRef, shard: int, data: bytes) -> KeyframeRef:
    """Store other bytes for a shard and return a reference that fits them."""
    key = ref.shards[shard].key
    store.objects[key] = data
    other = ObjectRef(key=key, size=len(data), blake3=blake3(data).hexdigest())
    return ref.model_copy(update={"shards": (*ref.shards[:shard], other, *ref.shards[shard + 1 :])})


def test_the_shards_of_a_layout_are_known_by_their_headers(stored: tuple[DictStore, Geometry, KeyframeRef]):
    store, geometry, ref = stored
    assert check_shards(geometry, ref, headers(store, ref)) == shards_of(geometry, 150)


@by_store
@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty"])
def test_a_damaged_shard_is_refused(kind: str, damage: str, tmp_path: Path):
    store = STORES[kind](tmp_path)
    geometry, ref = write(store, mixed_model(), shard_bytes=150)
    for shard in ref.shards:
        whole = store.get(shard.key)
        for place in range(0, len(whole), 5 if kind == "memory" else 45):
            data = bytearray(whole)
            if damage == "flip":
                data[place] ^= 1
            elif damage == "cut":
                del data[place:]
            elif damage == "grow":
                data += bytes(place + 1)
            else:
                data.clear()
            store.put(shard.key, bytes(data))
            if damage == "grow":  # no more than was committed is fetched
                assert fetched(store, geometry, ref) == expected(geometry, mixed_model())
                continue
            with pytest.raises(CorruptObject, match=shard.key):
                fetched(store, geometry, ref)
        store.put(shard.key, whole)
    assert fetched(store, geometry, ref) == expected(geometry, mixed_model())


@by_store
def test_a_missing_shard_is_not_found(kind: str, tmp_path: Path):
    store = STORES[kind](tmp_path)
    geometry, ref = write(store, mixed_model(), shard_bytes=150)
    store.delete(ref.shards[1].key)
    with pytest.raises(NotFound):
        fetched(store, geometry, ref)


def test_the_keyframe_of_another_layout_is_refused(stored: tuple[DictStore, Geometry, KeyframeRef]):
    store, _, ref = stored
    others = {
        "shape": mixed_model() | {"c": numbered((25, 2), 0)},
        "name": {("z" if name == "c" else name): array for name, array in mixed_model().items()},
        "dtype": mixed_model() | {"c": numbered((50,), 0, "i2")},
        "surplus": {name: array for name, array in mixed_model().items() if name != "g"},
        "missing": mixed_model() | {"zz": numbered((3,), 0, "u1")},
    }
    for model in others.values():
        with pytest.raises(CorruptObject):
            fetched(store, geometry_of(model), ref)


def test_shards_that_are_missing_doubled_or_out_of_order_are_refused(
    stored: tuple[DictStore, Geometry, KeyframeRef],
):
    store, geometry, ref = stored
    first, *rest = ref.shards
    assert len(rest) == 2
    for shards in (rest, [first, rest[0]], [first, first, *rest], [first, rest[1], rest[0]], [*ref.shards, first]):
        broken = ref.model_copy(update={"shards": tuple(shards)})
        with pytest.raises(CorruptObject):
            fetched(store, geometry, broken)


def reheaded(data: bytes, change: Callable[[dict[str, Any]], dict[str, Any]], pad: bytes = b"") -> bytes:
    """Return a shard with another header over the same data."""
    length = int.from_bytes(data[:8], "little")
    text = json.dumps(change(json.loads(data[8 : 8 + length])), separators=(",", ":")).encode() + pad
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


HEADERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no metadata": lambda d: {k: v for k, v in d.items() if k != "__metadata__"},
    "other metadata": lambda d: d | {"__metadata__": {"format": "np"}},
    "another order": lambda d: dict(reversed(d.items())),
    "another name": lambda d: {("x" if k == "c" else k): v for k, v in d.items()},
    "another shape": lambda d: d | {"c": d["c"] | {"shape": [5, 10]}},
    "another dtype": lambda d: d | {"c": d["c"] | {"dtype": "BF16"}},
    "other offsets": lambda d: d | {"c": d["c"] | {"data_offsets": [2, 102]}},
    "a tensor more": lambda d: d | {"x": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}},
    "a tensor less": lambda d: {k: v for k, v in d.items() if k != "d"},
    "no tensors": lambda d: {"__metadata__": {"format": "pt"}},
    "nothing": lambda d: {},
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_not_exactly_the_layouts_is_refused_even_where_the_hash_fits(
    stored: tuple[DictStore, Geometry, KeyframeRef], name: str
):
    store, geometry, ref = stored
    data = reheaded(store.objects[ref.shards[1].key], HEADERS[name])
    with pytest.raises(CorruptObject):
        fetched(store, geometry, committed_as(store, ref, 1, data))


def test_the_header_as_it_was_is_taken(stored: tuple[DictStore, Geometry, KeyframeRef]):
    store, geometry, ref = stored
    data = store.objects[ref.shards[1].key]
    assert reheaded(data, dict) == data
    padded = reheaded(data, dict, pad=b" " * 8)
    with pytest.raises(CorruptObject):
        fetched(store, geometry, committed_as(store, ref, 1, padded))


@pytest.mark.parametrize("change", [-1, 1, 8])
def test_more_or_fewer_data_than_the_tensors_take_are_refused_even_where_the_hash_fits(
    stored: tuple[DictStore, Geometry, KeyframeRef], change: int
):
    store, geometry, ref = stored
    for number, shard in enumerate(ref.shards):
        data = store.objects[shard.key]
        with pytest.raises(CorruptObject):
            fetched(store, geometry, committed_as(store, ref, number, (data + bytes(8))[: len(data) + change]))
        store.objects[shard.key] = data


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_a_length_field_of_any_size_is_refused_without_allocating(
    stored: tuple[DictStore, Geometry, KeyframeRef], length: int
):
    store, geometry, ref = stored
    data = length.to_bytes(8, "little") + store.objects[ref.shards[0].key][8:]
    with pytest.raises(CorruptObject):
        fetched(store, geometry, committed_as(store, ref, 0, data))


@pytest.mark.parametrize("data", [b"\0", b"1234567", b"\xff" * 100, b"8\0\0\0\0\0\0\0" + b"[" * 200])
def test_a_shard_that_is_no_safetensors_file_is_refused_even_where_the_hash_fits(
    stored: tuple[DictStore, Geometry, KeyframeRef], data: bytes
):
    store, geometry, ref = stored
    with pytest.raises(CorruptObject):
        fetched(store, geometry, committed_as(store, ref, 0, data))


def test_released_pages_read_the_same_again(tmp_path: Path):
    model = {"w": numbered((300_000,), 1, "u4"), "v": numbered((10,), 4, "u1")}
    store = FileStore(tmp_path)
    geometry, ref = write(store, model, group_bytes=1 << 18)
    keyframe = KeyframeCells.fetch(store, geometry, ref, map, None)
    for _ in range(2):
        for group in geometry.groups:
            keyframe.release(group)
            assert keyframe.weights.copy_of(group).tobytes() == plain(geometry, model).copy_of(group).tobytes()
    assert not keyframe.weights.arrays[0].flags.writeable
    keyframe.close()


def test_a_keyframe_has_the_digest_of_its_cells():
    store, model = DictStore(), mixed_model()
    geometry, ref = write(store, model)
    keyframe = KeyframeCells.fetch(store, geometry, ref, map, None)
    assert keyframe.weights.digest(NUMBA, map) == plain(geometry, model).digest(NUMBA, map)
    keyframe.close()
    assert geometry.id == layout_of(read_model(model), "keep").id
