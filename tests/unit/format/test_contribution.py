"""Contributions: what is coded comes back, and what is damaged, hostile or of other weights is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import Cells, get_backend
from pulse_kernels.cells import Index
from pulse_kernels.protocol import Floats, Levels
from pulse_registry.errors import BaseMismatch, CorruptObject, PulseError, UnsupportedFormat
from pulse_registry.format.contribution import Contribution, contribution_bytes
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import Layout, ObjectRef, Tensor
from pulse_schemas.heads import ContributionHead

BACKEND = get_backend("reference")
GEOMETRY = Geometry(
    Layout(tensors=(Tensor(name="a", dtype="BF16", shape=(9, 2**20)), Tensor(name="b", dtype="BF16", shape=(700,))))
)
SMALL = Geometry(Layout(tensors=(Tensor(name="a", dtype="BF16", shape=(500,)),)))
Part = tuple[Group, Index, Levels | Floats]


def weights_of(geometry: Geometry, seed: int = 1) -> Cells:
    drawn = np.random.default_rng(seed).normal(0, 0.02, geometry.cells).astype(np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16)


def spans(held: Cells, group: Group) -> list[Cells]:
    return [held[group.start : group.start + group.cells]]


def drawn(geometry: Geometry, share: float, seed: int = 2) -> Iterator[Part]:
    for group in geometry.groups:
        rng = np.random.default_rng(seed + group.number)
        index = np.flatnonzero(rng.random(group.cells) < share).astype(np.uint32)
        levels = rng.integers(-40, 40, len(index)).astype(np.int16)
        levels[levels == 0] = 32767
        yield group, index, levels


def coded(geometry: Geometry, parts: list[Part], held: Cells) -> bytes:
    def head(changed: int, groups: int) -> ContributionHead:
        return ContributionHead(
            layout=geometry.id,
            base="0" * 32,
            round=3,
            member="eu-1",
            values="levels" if parts[0][2].dtype == np.int16 else "float32",
            exponent=-20,
            changed=changed,
            groups=groups,
        )

    return contribution_bytes(BACKEND, geometry, head, parts, lambda group: spans(held, group))


def ref_of(data: bytes) -> ObjectRef:
    return ObjectRef(key="key", size=len(data), blake3=blake3(data).hexdigest())


def parse(geometry: Geometry, data: bytes) -> Contribution:
    return Contribution.parse(ref_of(data), geometry, data)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.001])
def test_levels_of_several_groups_come_back(share: float) -> None:
    held, parts = weights_of(GEOMETRY), list(drawn(GEOMETRY, share))
    assert len(parts) == 2
    data = coded(GEOMETRY, parts, held)
    found = parse(GEOMETRY, data)
    assert (found.head.member, found.head.round, found.head.exponent) == ("eu-1", 3, -20)
    assert found.head.changed == sum(len(index) for _, index, _ in parts)
    for group, index, levels in parts:
        assert (group.number in found.entries) == bool(len(index))
        if len(index):
            decoded = found.decode(BACKEND, group, spans(held, group))
            assert (decoded[0].tolist(), decoded[1].tolist()) == (index.tolist(), levels.tolist())


@pytest.mark.slow
def test_float32_values_of_several_groups_come_back_bit_for_bit() -> None:
    held, parts = weights_of(GEOMETRY), list[Part]()
    for group, index, _ in drawn(GEOMETRY, 0.001):
        rng = np.random.default_rng(group.number)
        values = (rng.standard_normal(len(index)) * 2.0 ** rng.integers(-140, 30, len(index))).astype(np.float32)
        values[values == 0] = np.float32(-1e-45)
        parts.append((group, index, values))
    found = parse(GEOMETRY, coded(GEOMETRY, parts, held))
    assert found.head.values == "float32"
    for group, index, values in parts:
        decoded = found.decode(BACKEND, group, spans(held, group))
        assert decoded[0].tolist() == index.tolist()
        assert decoded[1].dtype == np.float32
        assert decoded[1].view(np.uint32).tolist() == values.view(np.uint32).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**60, 0.0])
def test_a_value_that_nobody_sends_is_refused(bad: float) -> None:
    held = weights_of(SMALL)
    values = np.array([1.0, bad, -2.0], np.float32)
    data = coded(SMALL, [(SMALL.groups[0], np.array([3, 7, 90], np.uint32), values)], held)
    with pytest.raises(CorruptObject, match="group 0"):
        parse(SMALL, data).decode(BACKEND, SMALL.groups[0], spans(held, SMALL.groups[0]))


def test_a_group_of_other_weights_is_refused() -> None:
    held, parts = weights_of(SMALL), list(drawn(SMALL, 0.2))
    found = parse(SMALL, coded(SMALL, parts, held))
    other = held.copy()
    other[parts[0][1][5]] ^= 1  # the same classes: only the sum tells
    for wrong in (other, weights_of(SMALL, 9)):
        with pytest.raises(BaseMismatch, match="other weights"):
            found.decode(BACKEND, SMALL.groups[0], spans(wrong, SMALL.groups[0]))


def test_another_layout_is_refused() -> None:
    data = coded(SMALL, list(drawn(SMALL, 0.2)), weights_of(SMALL))
    other = Geometry(Layout(tensors=(Tensor(name="b", dtype="BF16", shape=(500,)),)))
    with pytest.raises(CorruptObject, match="another layout"):
        parse(other, data)


def test_a_later_format_is_told() -> None:
    data = coded(SMALL, list(drawn(SMALL, 0.2)), weights_of(SMALL))
    with pytest.raises(UnsupportedFormat):
        parse(SMALL, data.replace(b"pulse-contribution/1", b"pulse-contribution/2"))


@given(place=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_a_wrong_bit_is_refused_and_what_is_recorded_with_it_gives_no_other_levels(place: int, bit: int) -> None:
    held, parts = weights_of(SMALL), list(drawn(SMALL, 0.2))
    good = coded(SMALL, parts, held)
    data = bytearray(good)
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(CorruptObject, match="not those that were recorded"):
        Contribution.parse(ref_of(good), SMALL, bytes(data))
    try:
        decoded = parse(SMALL, bytes(data)).decode(BACKEND, SMALL.groups[0], spans(held, SMALL.groups[0]))
    except PulseError:
        return
    assert (decoded[0].tolist(), decoded[1].tolist()) == (parts[0][1].tolist(), parts[0][2].tolist())


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_part_of_an_object_is_refused(size: int) -> None:
    data = coded(SMALL, list(drawn(SMALL, 0.2)), weights_of(SMALL))
    with pytest.raises(CorruptObject):
        parse(SMALL, data[:size])
