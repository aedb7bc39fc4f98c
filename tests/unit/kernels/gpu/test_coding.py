"""Coding on the device makes the reference's bytes, reads them back, and refuses what the reference refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pulse_kernels import CELL_TYPES, CodecError, CoderName, RankError, decode_group, encode_group
from pulse_kernels.format.group import choose_classes
from pulse_kernels.format.rans import CHUNK
from pulse_kernels.gpu.coding.decode import Moves, decode_changes
from pulse_kernels.gpu.coding.encode import encode_changes
from pulse_kernels.gpu.coding.order import CLASS_TABLES
from pulse_kernels.gpu.tiling import Spans, Tiles
from tests.support.sampling import slow_but
from tests.unit.kernels.gpu.coding import CODERS, SHORT, Step, moved, weights
from tests.unit.kernels.gpu.inputs import REFERENCE, changed_at, places_of, policy, to_host

SIZES = (1, 255, 44)


@pytest.fixture(autouse=True)
def all_chunks_in_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program take more chunks than it does: the interpreter's time goes by programs and steps."""
    for module in ("encode", "decode"):
        monkeypatch.setattr(f"pulse_kernels.gpu.coding.{module}.CHUNKS", 128)


def step_of(device: str, pattern: str, name: str = "BF16", sizes: tuple[int, ...] = SIZES, group: int = 200) -> Step:
    model = policy(device, name, sizes, group=group)
    if name == "BF16":
        model.cells[:] = weights(len(model.cells))
    return Step(model, moved(model.cells, places_of(pattern, len(model.cells)), model))


def encoded(step: Step, coder: CoderName, chunk: int = SHORT) -> list[bytes]:
    found = encode_changes(step.changes(), coder, step.tiling(), chunk)
    data = found.data.cpu().numpy().tobytes()
    return [data[a:b] for a, b in zip(found.offsets, found.offsets[1:], strict=False)]


def decoded(step: Step, coder: CoderName, groups: list[bytes], chunk: int = SHORT) -> Moves:
    return decode_changes(step.model.tiles, coder, step.counts(), groups, step.tiling(), chunk)


def check(step: Step, coder: CoderName, chunk: int = SHORT) -> None:
    expected = step.coded(coder, chunk)
    assert encoded(step, coder, chunk) == expected
    found = decoded(step, coder, expected, chunk)
    assert np.array_equal(to_host(found.index), np.concatenate([index for _, index, _, _ in step.groups()]))
    assert np.array_equal(to_host(found.distance), step.distances())
    assert found.host_offsets.tolist() == found.group_offsets.tolist() == [0, *np.cumsum(step.counts())]


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("pattern", slow_but(["many"], ["none", "ends of tiles", "many", "all"]))
def test_the_bytes_are_those_of_the_reference_and_are_read_back(device: str, coder: CoderName, pattern: str) -> None:
    check(step_of(device, pattern), coder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coder", "name"),
    [("gap", "U8"), ("gap", "F64"), ("class", "F8_E5M2"), ("class", "F32"), ("class", "F64")],
)
def test_cells_of_every_width_are_coded(device: str, coder: CoderName, name: str) -> None:
    check(step_of(device, "many", name, (50, 27), 40), coder)


@pytest.mark.slow
@pytest.mark.parametrize("coder", CODERS)
def test_zeros_of_both_signs_and_nan_payloads_are_coded(device: str, coder: CoderName) -> None:
    model = policy(device, "BF16", (64,), group=64)
    odd = np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7F81, 0xFFFF, 0x7FFF, 0x0001], np.uint16)
    model.cells[:] = np.tile(odd, 8)
    check(Step(model, np.repeat(odd, 8)), coder)


@pytest.mark.parametrize("coder", CODERS)
def test_the_least_and_the_greatest_distance_are_coded(device: str, coder: CoderName) -> None:
    model = policy(device, "I16", (20,), group=20)
    check(Step(model, model.cells + np.tile(np.array([0x8000, 0x7FFF, 0x8001], np.uint16), 7)[:20]), coder)


@pytest.mark.slow
@pytest.mark.parametrize("coder", CODERS)
def test_chunks_of_the_formats_size_are_those_of_encode_group(device: str, coder: CoderName) -> None:
    step = step_of(device, "ends of tiles")
    groups = step.groups()
    kind = step.model.cell_type
    expected = [encode_group(REFERENCE, coder, kind, len(base), *change, [base]) for base, *change in groups]
    assert encoded(step, coder, CHUNK) == expected
    found = decode_changes(step.model.tiles, coder, step.counts(), expected, step.tiling())
    assert np.array_equal(to_host(found.distance), step.distances())


@pytest.mark.slow
def test_groups_of_different_types_of_one_width_are_coded_together(device: str) -> None:
    types = [CELL_TYPES[name] for name in ("BF16", "I16", "F16")]
    spans = Spans(*(np.array(part, np.int64) for part in ((0, 1, 2), (0, 1, 2), (0, 0, 0), (90, 40, 70))))
    tiles = Tiles.cut(spans, [0, 90, 130], types, device, 64)
    model = replace(policy(device, "BF16", (90, 40, 70)), tiles=tiles)
    step = Step(model, changed_at(model.cells, np.arange(0, 200, 9)))
    for coder in CODERS:
        alone = [
            encode_group(REFERENCE, coder, kind, len(base), *change, [base])
            for kind, (base, *change) in zip(types, step.groups(), strict=True)
        ]
        assert encoded(step, coder, CHUNK) == alone
        found = decode_changes(tiles, coder, step.counts(), alone, step.tiling())
        assert np.array_equal(to_host(found.index), np.concatenate([index for _, index, _, _ in step.groups()]))


def damaged(data: bytes, at: int, value: int) -> bytes:
    """Return a copy with one byte, counted from the end, changed."""
    changed = bytearray(data)
    changed[-at] ^= value
    return bytes(changed)


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize(("at", "value"), [(1, 1), (7, 0x10), (12, 0xFF)])
def test_damaged_words_are_refused_or_read_as_the_reference_does(
    device: str, coder: CoderName, at: int, value: int
) -> None:
    step = step_of(device, "ends of tiles", sizes=(3, 254), group=257)
    (base, index, old, new), kind = step.groups()[0], step.model.cell_type
    data = damaged(encode_group(REFERENCE, coder, kind, len(base), index, old, new, [base]), at, value)
    try:
        expected = decode_group(REFERENCE, coder, kind, len(base), len(index), data, [base])
    except (CodecError, RankError) as error:
        with pytest.raises(type(error), match="coded group 0: "):
            decoded(step, coder, [data], CHUNK)
    else:
        found = decoded(step, coder, [data], CHUNK)
        assert np.array_equal(to_host(found.index), expected[0])
        assert np.array_equal(to_host(found.distance), expected[1])


def test_ranks_past_the_cells_of_their_class_are_refused(device: str) -> None:
    step = step_of(device, "all", sizes=(300,), group=300)
    groups = step.coded("class")
    other = replace(step.model, cells=np.full_like(step.model.cells, 0x0100))
    with pytest.raises(RankError, match="coded group 0: a rank is past the cells of its class"):
        decode_changes(step.model.tiles, "class", step.counts(), groups, other.tiling(), SHORT)


def test_a_place_past_the_end_of_the_group_is_refused(device: str) -> None:
    step, wide = (step_of(device, "the last", sizes=(size,)) for size in (150, 180))
    with pytest.raises(CodecError, match="coded group 0: a place is past the group's end"):
        decoded(step, "gap", wide.coded("gap"))


def test_more_changes_than_cells_are_refused(device: str) -> None:
    step = step_of(device, "the last", sizes=(150,))
    with pytest.raises(CodecError, match="coded group 0: 151 changed cells of 150"):
        decode_changes(step.model.tiles, "gap", [151], step.coded("gap"))


def test_class_needs_the_base_both_ways(device: str) -> None:
    step = step_of(device, "the last", sizes=(150,))
    with pytest.raises(ValueError, match="needs the base cells"):
        encode_changes(step.changes(), "class")
    with pytest.raises(ValueError, match="needs the base cells"):
        decode_changes(step.model.tiles, "class", [1], step.coded("class"))


def test_every_group_needs_its_bytes(device: str) -> None:
    step = step_of(device, "the last")
    with pytest.raises(ValueError, match="1 coded groups for 2 groups"):
        decode_changes(step.model.tiles, "gap", step.counts(), step.coded("gap")[1:])


def test_as_many_classes_are_chosen_at_most_as_the_reference_chooses() -> None:
    assert len(choose_classes(np.full(256, 1000, np.uint32))[1]) == CLASS_TABLES


@pytest.mark.slow
@pytest.mark.parametrize("coder", CODERS)
def test_batches_of_groups_are_coded_as_all_at_once(device: str, coder: CoderName) -> None:
    step = step_of(device, "ends of tiles", sizes=(3, 300, 99), group=100)
    expected = step.coded(coder)
    assert len(expected) == 5
    changes, tiles = step.changes(), step.model.tiles
    found = encode_changes(changes, coder, step.tiling(), SHORT, batch=4)
    assert found.data.cpu().numpy().tobytes() == b"".join(expected)
    assert np.diff(found.offsets).tolist() == [len(group) for group in expected]
    moves = decode_changes(tiles, coder, step.counts(), expected, step.tiling(), SHORT, batch=4)
    assert np.array_equal(to_host(moves.index), to_host(changes.index))
    assert np.array_equal(to_host(moves.distance), step.distances())
    last = max(group for group, count in enumerate(step.counts()) if count)
    expected[last] += b"\0\0"
    with pytest.raises(CodecError, match=f"coded group {last}: "):
        decode_changes(tiles, coder, step.counts(), expected, step.tiling(), SHORT, batch=4)


@pytest.mark.slow
def test_changes_are_sorted_by_class_and_back(device: str) -> None:
    step = step_of(device, "all", sizes=(300, 220), group=520)
    assert step.coded("class")[0][0] == 3
    check(step, "class")


@pytest.mark.sweep
def test_as_many_classes_as_are_ever_chosen_are_coded(device: str) -> None:
    step = step_of(device, "all", "F32", (5200,), 5200)
    assert step.coded("class", 41)[0][0] == CLASS_TABLES
    check(step, "class", 41)
