"""Pieces of a keyframe that is read in part: each is fetched once for a node, and nothing that no reader wants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pulse_registry.errors import CorruptObject
from pulse_registry.events import EventKind
from pulse_registry.format.keyframe import KeyframeForm
from pulse_registry.format.pieces import PIECE_BYTES
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.pull.keyframe_cells import KeyframeCells
from tests.support.partial_keyframes import PIECE, Masks, Stored
from tests.support.waiting import HANG_S
from tests.unit.cache.building import Node, taken


@pytest.fixture(params=["raw", "exponents"])
def stored(request: pytest.FixtureRequest) -> Stored:
    """Return a keyframe of three shards."""
    tensors = [("F32", (3000,)), ("BF16", (9000,)), ("U8", (9000,))]
    return Stored(tensors, KeyframeForm(request.param, 10_000, PIECE))  # type: ignore[arg-type]


@pytest.fixture
def nodes(stored: Stored, tmp_path: Path) -> Iterator[list[Node]]:
    """Return two processes' views of the keyframe's store, through one folder."""
    made = [Node(tmp_path / "cache", store=stored.store) for _ in range(2)]
    yield made
    for node in made:
        node.view.close()


@pytest.fixture
def masks(stored: Stored) -> Masks:
    return stored.masks((0, 1500, 1501), (1, 100, 200), (1, 6000, 6001))


def nbytes(stored: Stored, masks: Masks) -> int:
    return stored.ref.index.size + sum(stop - start for _, (start, stop) in stored.expected(masks))


def read_whole(stored: Stored, node: Node) -> None:
    whole = KeyframeCells.fetch(node.view, stored.geometry, stored.ref, map, None)
    assert [cells.tobytes() for cells in whole.weights.arrays] == [cells.tobytes() for cells in stored.cells]
    whole.close()
    node.settle()


@pytest.mark.slow
def test_wanted_pieces_are_fetched_once_for_all_readers_and_the_rest_of_their_shards_is_not(
    stored: Stored, nodes: list[Node], masks: Masks
) -> None:
    for node in (*nodes, nodes[0]):
        _, counted = stored.fetch(masks, store=node.view)
        node.settle()
        assert counted == nbytes(stored, masks)
    assert nodes[0].store.bytes_read == nbytes(stored, masks)
    assert nodes[1].store.bytes_read == 0
    assert taken(nodes[0].path) == nbytes(stored, masks)
    assert len(nodes[0].whole) == 1 + len(stored.expected(masks))
    assert nodes[0].events == nodes[1].events == []


def test_readers_of_other_slices_share_what_both_want(stored: Stored, nodes: list[Node], masks: Masks) -> None:
    others = stored.masks((1, 6000, 6001), (2, 0, 1))
    stored.fetch(masks, store=nodes[0].view)
    nodes[0].settle()
    stored.fetch(others, store=nodes[1].view)
    shared = set(stored.expected(masks)) & set(stored.expected(others))
    assert shared
    assert nodes[1].store.bytes_read == sum(stop - start for _, (start, stop) in set(stored.expected(others)) - shared)


def test_readers_at_the_same_time_fetch_a_piece_once(stored: Stored, nodes: list[Node], masks: Masks) -> None:
    together = threading.Barrier(2, timeout=HANG_S)

    def fetch(node: Node) -> None:
        with ThreadPoolExecutor(3) as pool:
            together.wait()
            stored.fetch(masks, ParallelMap(pool), store=node.view)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(fetch, node) for node in nodes]:
            done.result()
    assert sum(node.store.bytes_read for node in nodes) == nbytes(stored, masks)


def test_a_shard_that_is_there_whole_is_read_where_it_lies(stored: Stored, nodes: list[Node], masks: Masks) -> None:
    read_whole(stored, nodes[0])
    stored.fetch(masks, store=nodes[1].view)
    assert nodes[1].store.bytes_read == 0
    assert taken(nodes[0].path) == stored.ref.size


def test_the_whole_keyframe_can_be_read_after_a_part_of_it(stored: Stored, nodes: list[Node], masks: Masks) -> None:
    stored.fetch(masks, store=nodes[0].view)
    nodes[0].settle()
    read_whole(stored, nodes[1])
    read_whole(stored, nodes[0])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("damage", ["a bit", "zeros", "a byte less"])
def test_damaged_copies_are_dropped_and_nobody_is_blamed(
    stored: Stored, nodes: list[Node], masks: Masks, damage: str, whole: bool
) -> None:
    if whole:
        read_whole(stored, nodes[0])
    stored.fetch(masks, store=nodes[0].view)
    nodes[0].settle()
    for copy in nodes[0].path.iterdir():
        data = copy.read_bytes()
        if copy.name in nodes[0].whole - {stored.ref.index.blake3}:
            changed = {"a bit": bytes([byte ^ 16 for byte in data]), "zeros": bytes(len(data))}
            copy.write_bytes(changed.get(damage, data[:-1]))
    for _ in range(2):
        stored.fetch(masks, store=nodes[1].view)
        nodes[1].settle()
    nodes[1].store.reset()
    stored.fetch(masks, store=nodes[1].view)
    assert nodes[1].store.bytes_read == 0, "the copies are whole again"
    assert nodes[0].events == nodes[1].events == []


def test_a_piece_that_is_damaged_in_the_store_is_refused_by_its_shards_key_and_leaves_no_copy(
    stored: Stored, nodes: list[Node], masks: Masks
) -> None:
    key, (start, _) = stored.expected(masks)[-1]
    honest = stored.store.objects[key]
    stored.store.objects[key] = honest[:start] + bytes([honest[start] ^ 1]) + honest[start + 1 :]
    for node in nodes:
        with pytest.raises(CorruptObject, match="the BLAKE3 of piece") as caught:
            stored.fetch(masks, store=node.view)
        assert caught.value.key == key
        assert not node.view.discard(key), "no copy was to blame"
        node.settle()
    assert not nodes[0].parts
    stored.store.objects[key] = honest
    stored.fetch(masks, store=nodes[0].view)


def test_a_cache_that_is_too_small_is_passed_by(stored: Stored, masks: Masks, tmp_path: Path) -> None:
    node = Node(tmp_path, limit=100, store=stored.store)
    for _ in range(2):
        stored.fetch(masks, store=node.view)
    assert [event.kind for event in node.events] == [EventKind.CACHE_BYPASSED]
    assert taken(tmp_path) <= 100
    node.view.close()


def test_without_pieces_the_shards_that_are_wanted_are_kept_and_no_others(tmp_path: Path) -> None:
    stored = Stored([("BF16", (9000,)), ("U8", (9000,))], KeyframeForm("raw", 10_000, PIECE))
    stored.without_pieces()
    node = Node(tmp_path, store=stored.store)
    for _ in range(2):
        stored.fetch(stored.masks((1, 0, 1)), store=node.view)
        node.settle()
    assert node.whole == {stored.ref.index.blake3, stored.ref.shards[1].blake3}
    assert node.store.bytes_read == stored.ref.index.size + stored.ref.shards[1].size
    assert stored.ref.shards[1].size < PIECE_BYTES
    node.view.close()
