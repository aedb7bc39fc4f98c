"""Coded keyframes: smaller, read back to the bytes of a plain one, refused where they are not what was committed."""

from __future__ import annotations

import json
import tracemalloc
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import load_file

from pulse_kernels import Cells
from pulse_registry import Registry
from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.cli.described import Source, describe_object
from pulse_registry.errors import Conflict, CorruptObject, InvalidArgument, InvalidModel, UnsupportedFormat
from pulse_registry.format.keyframe import KeyframeForm, write_keyframe
from pulse_registry.options import Options
from pulse_registry.pull.fetch import fetch_shards
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.push.checkpoint_source import read_checkpoint
from pulse_registry.push.options import PushOptions
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, FileStore, MemoryStore, Store
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.model import read_model
from pulse_schemas import KeyframeRef, ObjectRef
from tests.support.groups import geometry_of, mixed_model
from tests.support.records import DictStore

PIECE = 4096
WRITE_ID = "0" * 31 + "7"
Model = dict[str, np.ndarray[Any, Any]]


def bf16(count: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(ml_dtypes.bfloat16)


def a_model() -> Model:
    weights = {f"w{n}": bf16(count, n) for n, count in enumerate((9000, 1, 0, 30_000, 13))}
    return mixed_model() | weights | {"norm": np.ones(5, ml_dtypes.bfloat16)}


def write(
    store: Store, model: Model, group_bytes: int = 1 << 14, backend: str = "auto", **how: Any
) -> tuple[Geometry, KeyframeRef]:
    geometry = geometry_of(model, group_bytes=group_bytes)
    views = read_model(model)
    weights = Weights(geometry, [views[tensor.name].cells for tensor in geometry.layout.tensors])
    form = KeyframeForm(**{"coding": "exponents", "piece_bytes": PIECE, "shard_bytes": 40_000} | how)
    return geometry, write_keyframe(store, geometry, 3, WRITE_ID, weights.copy_of, form=form, backend=backend)


class Stored:
    """A coded keyframe, and what its index says, in a store that notes what is read."""

    def __init__(self) -> None:
        self.store, self.model = DictStore(), a_model()
        self.geometry, self.ref = write(self.store, self.model)
        self.gets: list[tuple[str, ByteRange | None]] = []
        plain = self.store.get

        def get(key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            self.gets.append((key, byte_range))
            return plain(key, byte_range, max_bytes=max_bytes)

        self.store.get = get  # type: ignore[method-assign]

    def fetch(self, spool: Path | None = None, *, in_memory: bool = False) -> None:
        """Fetch it and compare each cell."""
        self.gets.clear()
        keyframe = KeyframeCells.fetch(self.store, self.geometry, self.ref, map, spool, in_memory=in_memory)
        wanted = [self.model[tensor.name].tobytes() for tensor in self.geometry.layout.tensors]
        assert [array.tobytes() for array in keyframe.weights.arrays] == wanted
        keyframe.close()

    def reindexed(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Commit another index."""
        document = json.loads(self.store.objects[self.ref.index.key])
        change(document["metadata"]["pulse"])
        data = json.dumps(document).encode()
        self.store.objects[self.ref.index.key] = data
        index = ObjectRef(key=self.ref.index.key, size=len(data), blake3=blake3(data).hexdigest())
        self.ref = self.ref.model_copy(update={"index": index})

    def name(self, number: int) -> str:
        return self.ref.shards[number].key.rpartition("/")[2]


@pytest.fixture
def stored() -> Stored:
    return Stored()


# -- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("piece", [4096, 4098, 8 << 20])
@pytest.mark.parametrize("shard", [1, 20_000, 1 << 30])
def test_what_is_written_is_read_back(shard: int, piece: int, in_memory: bool):
    store, model = DictStore(), a_model()
    geometry, ref = write(store, model, shard_bytes=shard, piece_bytes=piece)
    keyframe = KeyframeCells.fetch(store, geometry, ref, map, None, in_memory=in_memory)
    assert keyframe.in_memory == in_memory
    wanted = [model[tensor.name].tobytes() for tensor in geometry.layout.tensors]
    assert [array.tobytes() for array in keyframe.weights.arrays] == wanted
    keyframe.close()


def test_decoded_shards_are_byte_for_byte_those_of_a_plain_keyframe(stored: Stored):
    plain = DictStore()
    _, ref = write(plain, stored.model, coding="raw")
    found = fetch_shards(stored.store, stored.geometry, stored.ref, map, None)
    assert [shard.map()[:] for shard in found] == [plain.objects[shard.key] for shard in ref.shards]
    assert [shard.key for shard in ref.shards] == [shard.key for shard in stored.ref.shards]
    for shard in found:
        shard.close()


def test_trained_weights_take_under_three_quarters():
    model = {"w": bf16(500_000)}
    coded, plain = (write(DictStore(), model, coding=coding, piece_bytes=1 << 20)[1] for coding in ("exponents", "raw"))
    assert coded.size < 0.72 * plain.size


def test_a_plain_keyframe_has_no_word_of_a_coding():
    store = DictStore()
    _, ref = write(store, a_model(), coding="raw")
    assert sorted(json.loads(store.objects[ref.index.key])["metadata"]["pulse"]) == ["layout", "pieces", "version"]


def test_the_same_cells_give_the_same_bytes_however_they_are_grouped_and_whatever_computes():
    stores = [DictStore() for _ in range(3)]
    for store, how in zip(stores, ({}, {"group_bytes": 1 << 20}, {"backend": "reference"}), strict=True):
        write(store, a_model(), **how)
    assert stores[0].objects == stores[1].objects == stores[2].objects


def test_the_references_describe_the_stored_bytes(stored: Stored):
    for ref in (stored.ref.index, *stored.ref.shards):
        data = stored.store.objects[ref.key]
        assert (ref.size, ref.blake3) == (len(data), blake3(data).hexdigest())


def test_a_coded_shard_is_a_safetensors_file_of_bytes(tmp_path: Path):
    _, ref = write(FileStore(tmp_path), a_model())
    for shard in ref.shards:
        tensors = load_file(tmp_path / shard.key)
        assert list(tensors) == ["pieces"]
        assert tensors["pieces"].dtype == np.uint8


def test_cells_that_change_between_the_two_readings_are_not_written():
    model = {"w": bf16(20_000)}
    readings: list[int] = []

    def cells_of(group: Group) -> Cells:
        readings.append(group.number)
        return model["w"].view(np.uint16) if len(readings) == 1 else np.full(group.cells, 0x7FC0, np.uint16)

    geometry = geometry_of(model, group_bytes=1 << 20)
    store = DictStore()
    with pytest.raises(Conflict, match="changed while they were coded; the keyframe was not written"):
        write_keyframe(store, geometry, 3, WRITE_ID, cells_of, form=KeyframeForm("exponents"))
    assert readings == [0, 0]
    assert not store.objects


def test_a_coded_keyframe_is_streamed_within_the_memory_of_a_few_groups():
    group = 1 << 20
    model = {f"w{n}": bf16(1_500_000, n) for n in range(4)}
    geometry = geometry_of(model, group_bytes=group)
    views = read_model(model)
    weights = Weights(geometry, [views[tensor.name].cells for tensor in geometry.layout.tensors])

    class Sink(DictStore):
        def put(self, key: str, data: Any, *, if_absent: bool = False) -> None:
            assert sum(len(view) for view in data if not isinstance(data, bytes)) < 0.75 * geometry.nbytes

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        form = KeyframeForm("exponents", piece_bytes=group // 2)
        write_keyframe(Sink(), geometry, 3, WRITE_ID, weights.copy_of, form=form)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert geometry.nbytes > 11 * group
    assert peak < 5 * group


# -- what is fetched ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_coded_keyframe_is_fetched_by_one_read_a_piece_and_one_of_the_index(stored: Stored, in_memory: bool):
    stored.fetch(in_memory=in_memory)
    assert stored.gets[0] == (stored.ref.index.key, (0, stored.ref.index.size))
    for shard in stored.ref.shards:
        parts = [part for key, part in stored.gets if key == shard.key and part]
        assert parts[0][0] == 0
        assert parts[-1][1] == shard.size
        assert all(before[1] == after[0] for before, after in pairwise(parts))
    pieces = json.loads(stored.store.objects[stored.ref.index.key])["metadata"]["pulse"]["pieces"]["blake3"]
    assert len(stored.gets) == 1 + sum(map(len, pieces.values())) > 20


def test_a_fetch_that_broke_off_goes_on_without_fetching_again_what_was_verified(stored: Stored, tmp_path: Path):
    last = stored.ref.shards[-1]
    whole = stored.store.objects[last.key]
    stored.store.objects[last.key] = whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(CorruptObject, match=rf"{last.key}: the BLAKE3 of piece \d+ differs"):
        stored.fetch(tmp_path)
    stored.store.objects[last.key] = whole
    stored.fetch(tmp_path)
    assert [key for key, _ in stored.gets] == [stored.ref.index.key, last.key]
    assert not list(tmp_path.iterdir())


def test_what_was_damaged_on_the_disk_meanwhile_is_fetched_again(stored: Stored, tmp_path: Path):
    last = stored.ref.shards[-1].key
    whole = stored.store.objects.pop(last)
    with pytest.raises(Exception, match=last):
        stored.fetch(tmp_path)
    stored.store.objects[last] = whole
    first = stored.ref.shards[0]
    path = tmp_path / f".pulse-{first.blake3}.part"
    data = bytearray(path.read_bytes())
    data[PIECE + 5] ^= 1
    path.write_bytes(bytes(data))
    stored.fetch(tmp_path)
    assert [key for key, _ in stored.gets].count(first.key) == 1


def test_a_piece_that_was_damaged_on_the_way_is_fetched_again_alone(stored: Stored):
    honest, key, left = stored.store.get, stored.ref.shards[1].key, [True]

    def get(asked: str, part: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        data = honest(asked, part)
        return bytes(len(data)) if asked == key and part and part[0] and left and left.pop() else data

    stored.store.get = get  # type: ignore[method-assign]
    stored.fetch()
    ranges = [part for asked, part in stored.gets if asked == key]
    assert len(ranges) == len(set(ranges)) + 1


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_coding_that_is_not_known_is_refused_as_written_by_another_release(stored: Stored):
    for name in ("pulse-exponents/2", "other", None):
        stored.reindexed(lambda pulse, name=name: pulse["coding"].update(format=name))  # type: ignore[misc]
        with pytest.raises(UnsupportedFormat, match="upgrade"):
            stored.fetch()


def first_sizes(pulse: dict[str, Any]) -> list[int]:
    return next(iter(pulse["coding"]["shards"].values()))["sizes"]  # type: ignore[no-any-return]


def shift(pulse: dict[str, Any], by: int) -> None:
    """Move bytes from one piece to the next: the sum stays."""
    sizes = max((shard["sizes"] for shard in pulse["coding"]["shards"].values()), key=len)
    sizes[0], sizes[1] = sizes[0] - by, sizes[1] + by


INDEXES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no pieces": lambda pulse: pulse.pop("pieces"),
    "pieces of an odd size": lambda pulse: pulse["pieces"].update(size=4097),
    "pieces of another size": lambda pulse: pulse["pieces"].update(size=8192),
    "no shards": lambda pulse: pulse["coding"].update(shards={}),
    "a field more": lambda pulse: pulse["coding"].update(more=1),
    "tensors of another shard": lambda pulse: [s.update(tensors=1) for s in pulse["coding"]["shards"].values()],
    "no tensors": lambda pulse: [s.update(tensors=0) for s in pulse["coding"]["shards"].values()],
    "tensors that are not there": lambda pulse: [s.update(tensors=99) for s in pulse["coding"]["shards"].values()],
    "a size more": lambda pulse: first_sizes(pulse).append(0),
    "a size less": lambda pulse: first_sizes(pulse).pop(),
    "a negative size": lambda pulse: first_sizes(pulse).insert(0, -1),
    "a larger size": lambda pulse: first_sizes(pulse).append(first_sizes(pulse).pop() + 1),
    "a size of all there is": lambda pulse: first_sizes(pulse).append(first_sizes(pulse).pop() + 2**40),
    "bytes moved between pieces": lambda pulse: shift(pulse, 1),
    "more moved than a piece can take": lambda pulse: shift(pulse, -(1 << 20)),
    "a hash less": lambda pulse: next(iter(pulse["pieces"]["blake3"].values())).pop(),
    "a hash more": lambda pulse: next(iter(pulse["pieces"]["blake3"].values())).append("0" * 64),
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_that_does_not_fit_the_layout_and_the_record_is_refused(stored: Stored, name: str):
    stored.reindexed(INDEXES[name])
    with pytest.raises(CorruptObject):
        stored.fetch()


def test_sizes_are_refused_before_a_shard_is_read_or_memory_taken_for_it(stored: Stored):
    stored.reindexed(INDEXES["a size of all there is"])
    size = stored.ref.shards[0].size + 2**40
    huge = stored.ref.shards[0].model_copy(update={"size": size})
    stored.ref = stored.ref.model_copy(update={"shards": (huge, *stored.ref.shards[1:])})
    stored.gets.clear()
    with pytest.raises(CorruptObject, match="can't be its piece"):
        KeyframeCells.fetch(stored.store, stored.geometry, stored.ref, map, None, in_memory=True)
    assert [key for key, _ in stored.gets] == [stored.ref.index.key]


def test_shards_that_are_missing_doubled_or_out_of_order_are_refused(stored: Stored):
    first, second, *rest = stored.ref.shards
    for shards in ((second, *rest), (first, first, second, *rest), (second, first, *rest), (first,)):
        broken = stored.ref.model_copy(update={"shards": shards})
        with pytest.raises(CorruptObject):
            KeyframeCells.fetch(stored.store, stored.geometry, broken, map, None)


@pytest.mark.parametrize(("byte", "value"), [(0, 8), (2, 1), (4, 1), (7, 1)])
def test_a_piece_whose_bytes_break_the_format_is_refused_even_where_its_hash_fits(
    stored: Stored, byte: int, value: int
):
    number = max(range(len(stored.ref.shards)), key=lambda n: stored.ref.shards[n].size)
    ref, name = stored.ref.shards[number], stored.name(number)

    def damage(pulse: dict[str, Any]) -> None:
        sizes = pulse["coding"]["shards"][name]["sizes"]
        data = bytearray(stored.store.objects[ref.key])
        at = len(data) - sum(sizes[1:])  # the second piece: coded cells, whose first head is damaged
        data[at + byte] ^= value
        stored.store.objects[ref.key] = bytes(data)
        pulse["pieces"]["blake3"][name][1] = blake3(data[at : at + sizes[1]]).hexdigest()

    stored.reindexed(damage)
    with pytest.raises(CorruptObject, match=f"{ref.key}: piece 1: "):
        stored.fetch()


def test_any_other_header_is_refused_even_where_its_hash_fits(stored: Stored):
    ref, name = stored.ref.shards[0], stored.name(0)
    data = stored.store.objects[ref.key].replace(b'"U8"', b'"I8"', 1)
    stored.store.objects[ref.key] = data

    def rehash(pulse: dict[str, Any]) -> None:
        sizes = pulse["coding"]["shards"][name]["sizes"]
        pulse["pieces"]["blake3"][name][0] = blake3(data[: len(data) - sum(sizes[1:])]).hexdigest()

    stored.reindexed(rehash)
    with pytest.raises(CorruptObject, match="piece 0 differs"):
        stored.fetch()


# -- through the library -----------------------------------------------------------------------------------------------


def coded_registry(store: Store) -> Registry:
    return Registry(store, "math", Options(push=PushOptions(dtype="keep", keyframe_coding="exponents")))


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_version_of_a_coded_keyframe_and_patches_is_pulled_and_verified(kind: str, tmp_path: Path):
    store = MemoryStore(uuid.uuid4().hex) if kind == "memory" else FileStore(tmp_path)
    model = {"w": bf16(50_000), "b": np.arange(10, dtype=np.float32)}
    with coded_registry(store) as registry:
        assert registry.push(0, model).nbytes < 0.8 * 100_040
        model["w"][::100] += 1
        registry.push(1, model)
        into = {name: np.zeros_like(array) for name, array in model.items()}
        registry.pull(into=into)
        assert {name: array.tobytes() for name, array in into.items()} == {n: a.tobytes() for n, a in model.items()}
        assert registry.verify(0).version == 0


def test_an_attached_keyframe_is_coded_too():
    store, model = MemoryStore(uuid.uuid4().hex), {"w": bf16(20_000)}
    options = PushOptions(dtype="keep", keyframe_coding="exponents", keyframe_every=1)
    with Registry(store, "math", Options(push=options)) as registry:
        for step in range(3):
            model["w"][step] += 1
            registry.push(step, model)
    indexes = [store.get(key) for key in store.list("math/objects/keyframe/") if key.endswith("index.json")]
    assert len(indexes) > 1
    assert all(b"pulse-exponents/1" in index for index in indexes)


def test_a_pull_into_a_folder_leaves_an_ordinary_checkpoint(tmp_path: Path):
    model = {"w": bf16(20_000), "b": np.arange(10, dtype=np.float32)}
    with coded_registry(FileStore(tmp_path / "store")) as registry:
        registry.push(0, model)
        pull_checkpoint(registry, into=tmp_path / "out")
    loaded: dict[str, Any] = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        loaded |= load_file(path)
    assert {name: array.tobytes() for name, array in loaded.items()} == {n: a.tobytes() for n, a in model.items()}
    assert read_checkpoint(tmp_path / "out")["w"].cells(0, 20_000).tobytes() == model["w"].tobytes()


def test_a_coded_shard_is_described_by_its_coding_and_no_checkpoint_to_push(tmp_path: Path):
    _, ref = write(FileStore(tmp_path), {"w": bf16(5000)})
    path = tmp_path / ref.shards[0].key
    data = path.read_bytes()
    about = described(path)
    assert (about["type"], about["coding"]) == ("coded keyframe shard", "pulse-exponents/1")
    with pytest.raises(InvalidModel, match="coded shard of a keyframe: pull its version"):
        read_checkpoint(path.parent)
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptObject, match="follow the header"):
        described(path)
    path.write_bytes(data.replace(b"pulse-exponents/1", b"pulse-exponents/2"))
    with pytest.raises(UnsupportedFormat, match="pulse-exponents/2"):
        described(path)


def described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return describe_object(Source.of_file(path, file))


def test_a_coding_that_is_none_is_refused_at_once():
    with pytest.raises(InvalidArgument, match="keyframe_coding is 'zip'; it is one of raw, exponents"):
        PushOptions(keyframe_coding="zip")  # type: ignore[arg-type]
