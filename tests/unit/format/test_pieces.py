"""Keyframes in pieces: each is fetched, checked and kept alone; what was verified is not fetched again."""

from __future__ import annotations

import fcntl
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject, StoreUnavailable
from pulse_registry.format.keyframe import INDEX_NAME, KeyframeForm, write_keyframe
from pulse_registry.format.pieces import PIECE_BYTES, PieceHasher, Pieces
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.pull import fetch
from pulse_registry.pull.download import STALE_SECONDS
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import read_model
from pulse_schemas import KeyframeRef, ObjectRef
from tests.support.groups import geometry_of
from tests.support.records import DictStore
from tests.support.waiting import HANG_S

PIECE = 4096
WRITE_ID = "0" * 31 + "7"
Model = dict[str, np.ndarray[Any, Any]]
Damage = Callable[[str, ByteRange, bytes], bytes]


def a_model() -> Model:
    rng = np.random.default_rng(3)
    return {name: rng.integers(0, 2**16, 20_000, dtype=np.uint16) for name in ("a", "b", "c")}


class Recording(DictStore):
    """A store that notes every read, and may be told what to make of it."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, ByteRange | None]] = []
        self.answer: Damage = lambda key, byte_range, data: data

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        self.gets.append((key, byte_range))
        data = super().get(key, byte_range, max_bytes=max_bytes)
        return data if byte_range is None or key.endswith(INDEX_NAME) else self.answer(key, byte_range, data)

    def size(self, key: str) -> int:
        return len(self.objects[key])

    def shard_gets(self) -> list[tuple[str, ByteRange | None]]:
        return [(key, part) for key, part in self.gets if not key.endswith(INDEX_NAME)]


class Stored:
    """A keyframe of two shards of 20 and 10 pieces in a recording store."""

    def __init__(self, piece_bytes: int = PIECE) -> None:
        self.store, self.model = Recording(), a_model()
        self.geometry: Geometry = geometry_of(self.model, group_bytes=1 << 14)
        views = read_model(self.model)
        weights = Weights(self.geometry, [views[tensor.name].cells for tensor in self.geometry.layout.tensors])
        form = KeyframeForm(shard_bytes=80_000, piece_bytes=piece_bytes)
        self.ref = write_keyframe(self.store, self.geometry, 3, WRITE_ID, weights.copy_of, form=form)

    def fetch(self, spool: Path | None = None, *, in_memory: bool = False, map_: Any = map) -> KeyframeCells:
        self.store.gets.clear()
        return KeyframeCells.fetch(self.store, self.geometry, self.ref, map_, spool, in_memory=in_memory)

    def check(self, keyframe: KeyframeCells) -> None:
        wanted = [self.model[tensor.name].tobytes() for tensor in self.geometry.layout.tensors]
        assert [array.tobytes() for array in keyframe.weights.arrays] == wanted
        keyframe.close()

    def pieces(self) -> int:
        return sum(-(-shard.size // PIECE) for shard in self.ref.shards)


@pytest.fixture
def stored() -> Stored:
    return Stored()


# -- what is written ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 40))
def test_pieces_are_hashed_however_the_bytes_come(sizes: list[int], piece: int):
    data = random.Random(1).randbytes(sum(sizes))
    hasher, at = PieceHasher(piece), 0
    for size in sizes:
        hasher.update(memoryview(data)[at : at + size])
        at += size
    assert hasher.whole() == blake3(data).hexdigest()
    assert hasher.pieces() == tuple(blake3(data[at : at + piece]).hexdigest() for at in range(0, len(data), piece))


def test_the_index_lists_the_hash_of_every_piece_of_every_shard(stored: Stored):
    index = json.loads(stored.store.objects[stored.ref.index.key])
    pieces = index["metadata"]["pulse"]["pieces"]
    assert pieces["size"] == PIECE
    assert len(pieces["blake3"]) == len(stored.ref.shards) == 2
    for shard in stored.ref.shards:
        data = stored.store.objects[shard.key]
        expected = [blake3(data[at : at + PIECE]).hexdigest() for at in range(0, len(data), PIECE)]
        assert pieces["blake3"][shard.key.rpartition("/")[2]] == expected
        assert len(expected) >= 9


def test_pieces_are_eight_mebibytes_unless_told_otherwise(stored: Stored):
    index = json.loads(Stored(PIECE_BYTES).store.objects[stored.ref.index.key])
    assert index["metadata"]["pulse"]["pieces"]["size"] == 8 << 20


# -- what is fetched ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_keyframe_is_fetched_by_one_read_a_piece_and_one_of_the_index(stored: Stored, in_memory: bool):
    stored.check(stored.fetch(in_memory=in_memory))
    assert stored.store.gets[0] == (stored.ref.index.key, (0, stored.ref.index.size))
    assert len(stored.store.gets) == 1 + stored.pieces()
    for shard in stored.ref.shards:
        parts = [part for key, part in stored.store.gets if key == shard.key]
        assert parts == [(at, min(at + PIECE, shard.size)) for at in range(0, shard.size, PIECE)]


def test_pieces_are_fetched_side_by_side(stored: Stored):
    together = threading.Barrier(4, timeout=HANG_S)
    first = iter(range(4))

    def answer(key: str, part: ByteRange, data: bytes) -> bytes:
        if next(first, None) is not None:
            together.wait()  # no read is answered before four are under way
        return data

    stored.store.answer = answer
    with ThreadPoolExecutor(4) as pool:
        stored.check(stored.fetch(map_=ParallelMap(pool)))
    assert next(first, None) is None


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("kind", ["flipped", "cut", "longer", "of another place"])
def test_a_piece_that_was_damaged_on_the_way_is_fetched_again_alone(stored: Stored, kind: str, in_memory: bool):
    damage: dict[str, Callable[[bytes], bytes]] = {
        "flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
        "cut": lambda data: data[:-1],
        "longer": lambda data: data + b"\0",
        "of another place": lambda data: stored.store.objects[stored.ref.shards[0].key][8 : 8 + len(data)],
    }
    damaged = {(shard.key, PIECE * number) for shard in stored.ref.shards for number in (0, 3, 9)}
    left = set(damaged)

    def answer(key: str, part: ByteRange, data: bytes) -> bytes:
        if (key, part[0]) in left:
            left.remove((key, part[0]))
            return damage[kind](data)
        return data

    stored.store.answer = answer
    stored.check(stored.fetch(in_memory=in_memory))
    assert not left
    gets = stored.store.shard_gets()
    assert len(gets) == stored.pieces() + len(damaged)
    assert {(key, part[0]) for key, part in gets if part and gets.count((key, part)) > 1} == damaged


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many pieces a request asks for, where they come into memory."""
    monkeypatch.setattr(fetch, "pieces_a_request", lambda ref, pieces: 4)
    return 4


def test_pieces_that_come_into_memory_share_requests(stored: Stored, together: int):
    stored.check(stored.fetch(in_memory=True))
    for shard in stored.ref.shards:
        parts = [part for key, part in stored.store.gets if key == shard.key]
        run = together * PIECE
        assert parts == [(at, min(at + run, shard.size)) for at in range(0, shard.size, run)]
    stored.check(stored.fetch())
    assert len(stored.store.shard_gets()) == stored.pieces(), "on the way to a file a thread holds one piece"


@pytest.mark.parametrize("kind", ["flipped", "cut", "longer"])
def test_of_pieces_that_came_together_a_damaged_one_is_fetched_again_alone(stored: Stored, together: int, kind: str):
    key, run = stored.ref.shards[0].key, (4 * PIECE, 8 * PIECE)
    left = [1]

    def answer(name: str, part: ByteRange, data: bytes) -> bytes:
        if (name, part) == (key, run) and left:
            left.pop()
            flipped = data[: PIECE + 3] + bytes([data[PIECE + 3] ^ 1]) + data[PIECE + 4 :]
            return {"flipped": flipped, "cut": data[:-1], "longer": data + b"\0"}[kind]
        return data

    stored.store.answer = answer
    stored.check(stored.fetch(in_memory=True))
    alone = [part for name, part in stored.store.shard_gets() if part is not None and part[1] - part[0] == PIECE]
    wanted = [(at, at + PIECE) for at in range(*run, PIECE)]
    assert alone == (wanted[1:2] if kind == "flipped" else wanted), "what comes otherwise is fetched piece by piece"
    assert not left


def test_of_pieces_that_came_together_one_that_is_damaged_in_the_store_is_named(stored: Stored, together: int):
    key = stored.ref.shards[0].key
    data = bytearray(stored.store.objects[key])
    data[6 * PIECE + 5] ^= 1
    stored.store.objects[key] = bytes(data)
    with pytest.raises(CorruptObject, match=rf"{key}: the BLAKE3 of piece 6 differs"):
        stored.fetch(in_memory=True)
    assert stored.store.gets.count((key, (6 * PIECE, 7 * PIECE))) == 1


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(9, 1), (32 * PIECE_BYTES, 1), (70 * PIECE_BYTES, 2), (10**12, 8), (10**15, 8)]
)
def test_each_thread_gets_some_requests_and_none_is_for_more_than_eight_large_pieces(nbytes: int, expected: int):
    shards = (ObjectRef(key="a", size=nbytes, blake3="0" * 64),)
    ref = KeyframeRef(version=1, index=shards[0], shards=shards)
    assert fetch.pieces_a_request(ref, Pieces(size=PIECE_BYTES, blake3={})) == expected
    assert fetch.pieces_a_request(ref, None) == 1


def test_a_piece_that_comes_damaged_in_the_same_way_twice_is_damaged_in_the_store(stored: Stored):
    key = stored.ref.shards[1].key
    data = bytearray(stored.store.objects[key])
    data[2 * PIECE + 5] ^= 1
    stored.store.objects[key] = bytes(data)
    with pytest.raises(CorruptObject, match=rf"{key}: the BLAKE3 of piece 2 differs"):
        stored.fetch()
    assert stored.store.gets.count((key, (2 * PIECE, 3 * PIECE))) == 2


def test_a_piece_that_never_comes_whole_is_given_up_after_five_reads(stored: Stored):
    answers = iter(range(10**6))
    stored.store.answer = lambda key, part, data: next(answers).to_bytes(4, "little") + data[4:]
    with pytest.raises(CorruptObject, match="piece 0 differs"):
        stored.fetch()
    assert len(stored.store.shard_gets()) == 5


def test_an_index_that_was_damaged_on_the_way_is_fetched_again(stored: Stored):
    whole = stored.store.objects[stored.ref.index.key]
    answers: Iterator[bytes] = iter([b"{" + whole[1:-1] + b"]", whole[:-1], whole])
    stored.store.get = lambda key, part=None: (  # type: ignore[method-assign]
        next(answers) if key == stored.ref.index.key else Recording.get(stored.store, key, part)
    )
    stored.check(stored.fetch())


def test_a_shard_that_is_longer_than_committed_is_read_as_far_as_it_was_committed(stored: Stored):
    for shard in stored.ref.shards:
        stored.store.objects[shard.key] += b"junk"
    stored.check(stored.fetch())


# -- an index without pieces -------------------------------------------------------------------------------------------


@pytest.fixture
def older(stored: Stored) -> Stored:
    """Return a keyframe whose index is one without pieces."""
    index = json.loads(stored.store.objects[stored.ref.index.key])
    del index["metadata"]["pulse"]["pieces"]
    data = json.dumps(index).encode()
    stored.store.objects[stored.ref.index.key] = data
    ref = ObjectRef(key=stored.ref.index.key, size=len(data), blake3=blake3(data).hexdigest())
    stored.ref = KeyframeRef(version=3, index=ref, shards=stored.ref.shards)
    return stored


@pytest.mark.parametrize("in_memory", [False, True])
def test_without_pieces_a_shard_is_checked_by_its_whole_hash(older: Stored, in_memory: bool):
    older.check(older.fetch(in_memory=in_memory))
    key = older.ref.shards[1].key
    older.store.objects[key] = older.store.objects[key][:-1] + b"\0"
    with pytest.raises(CorruptObject, match=rf"{key}: its BLAKE3 is"):
        older.fetch(in_memory=in_memory)


def test_without_pieces_a_damaged_shard_is_fetched_again_whole(older: Stored):
    left = [older.ref.shards[0].key]

    def answer(key: str, part: ByteRange, data: bytes) -> bytes:
        if key in left:
            left.remove(key)
            return data[:-1] + b"\x55"
        return data

    older.store.answer = answer
    older.check(older.fetch())
    assert [key for key, _ in older.store.shard_gets()] == [older.ref.shards[n].key for n in (0, 0, 1)]


def test_an_index_without_our_metadata_is_one_without_pieces(older: Stored):
    for metadata in ({"total_size": 5}, {"pulse": {"other": 1}}, {}):
        data = json.dumps({"metadata": metadata, "weight_map": {}}).encode()
        older.store.objects[older.ref.index.key] = data
        ref = ObjectRef(key=older.ref.index.key, size=len(data), blake3=blake3(data).hexdigest())
        older.ref = KeyframeRef(version=3, index=ref, shards=older.ref.shards)
        older.check(older.fetch())


# -- the spool ---------------------------------------------------------------------------------------------------------


def break_off(stored: Stored, after: int, spool: Path) -> None:
    """Fetch so many pieces, then fail."""
    left = iter(range(after))

    def answer(key: str, part: ByteRange, data: bytes) -> bytes:
        if next(left, None) is None:
            raise StoreUnavailable("gone")
        return data

    stored.store.answer = answer
    with pytest.raises(StoreUnavailable, match="gone"):
        stored.fetch(spool)
    stored.store.answer = lambda key, part, data: data


def parts(spool: Path) -> list[str]:
    return sorted(path.name for path in spool.iterdir())


@pytest.mark.parametrize("after", [1, 7, 20, 29])
def test_a_fetch_that_broke_off_goes_on_without_fetching_again_what_was_verified(
    stored: Stored, tmp_path: Path, after: int
):
    break_off(stored, after, tmp_path)
    assert parts(tmp_path)
    keyframe = stored.fetch(tmp_path)
    assert len(stored.store.shard_gets()) == stored.pieces() - after
    stored.check(keyframe)
    assert parts(tmp_path) == []


def test_what_was_damaged_on_the_disk_meanwhile_is_fetched_again(stored: Stored, tmp_path: Path):
    break_off(stored, 15, tmp_path)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[2 * PIECE] ^= 1
    path.write_bytes(bytes(data))
    stored.check(stored.fetch(tmp_path))
    assert len(stored.store.shard_gets()) == stored.pieces() - 14


@pytest.mark.parametrize("size", [0, 100, 10**6])
def test_a_spool_file_of_any_size_is_taken_for_no_more_than_it_holds(stored: Stored, tmp_path: Path, size: int):
    shard = stored.ref.shards[0]
    (tmp_path / f".pulse-{shard.blake3}.part").write_bytes(b"\xa5" * size)
    stored.check(stored.fetch(tmp_path))
    assert len(stored.store.shard_gets()) == stored.pieces()
    assert parts(tmp_path) == []


def test_without_pieces_a_shard_that_was_fetched_whole_is_not_fetched_again(older: Stored, tmp_path: Path):
    break_off(older, 1, tmp_path)
    older.check(older.fetch(tmp_path))
    assert [key for key, _ in older.store.shard_gets()] == [older.ref.shards[1].key]


def test_two_pulls_into_one_spool_do_not_meet(stored: Stored, tmp_path: Path):
    break_off(stored, 15, tmp_path)
    (path,) = tmp_path.iterdir()
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # another pull is at work on it
        before = path.read_bytes()
        stored.check(stored.fetch(tmp_path))
        assert len(stored.store.shard_gets()) == stored.pieces()
        assert path.read_bytes() == before
    finally:
        os.close(descriptor)


def test_a_link_in_the_place_of_a_spool_file_is_not_followed(stored: Stored, tmp_path: Path):
    other, spool = tmp_path / "other", tmp_path / "spool"
    spool.mkdir()
    other.write_bytes(b"precious")
    (spool / f".pulse-{stored.ref.shards[0].blake3}.part").symlink_to(other)
    stored.check(stored.fetch(spool))
    assert other.read_bytes() == b"precious"


def test_a_fetch_that_got_nothing_leaves_nothing(stored: Stored, tmp_path: Path):
    stored.store.delete(stored.ref.shards[0].key)
    with pytest.raises(Exception, match=r"model-00001"):
        stored.fetch(tmp_path)
    assert parts(tmp_path) == []


def test_spool_files_of_pulls_that_died_long_ago_are_removed(stored: Stored, tmp_path: Path):
    names = [f".pulse-{digit * 64}.part" for digit in "ab"]
    for name in (*names, "model.part", "config.json"):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, times=(0, 0))
    os.utime(tmp_path / names[1])
    assert STALE_SECONDS > 86400
    stored.check(stored.fetch(tmp_path))
    assert parts(tmp_path) == [names[1], "config.json", "model.part"]


def test_a_spool_that_is_not_there_is_a_typed_error(stored: Stored, tmp_path: Path):
    with pytest.raises(StoreUnavailable, match=r"can't be kept in .*nowhere"):
        stored.fetch(tmp_path / "nowhere")


# -- memory ------------------------------------------------------------------------------------------------------------


def test_cells_in_memory_are_writable_and_stay_when_the_keyframe_is_closed(stored: Stored):
    keyframe = stored.fetch(in_memory=True)
    assert keyframe.in_memory
    arrays = keyframe.weights.arrays
    for group in stored.geometry.groups:
        keyframe.release(group)
    stored.check(keyframe)
    arrays[0][0] ^= 1
    del keyframe
    assert arrays[0][0] == stored.model["a"][0] ^ 1


def test_with_a_spool_of_the_callers_cells_are_not_kept_in_memory(stored: Stored, tmp_path: Path):
    keyframe = stored.fetch(tmp_path, in_memory=True)
    assert not keyframe.in_memory
    stored.check(keyframe)
