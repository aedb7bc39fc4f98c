"""The totals of a round: in as many bits as the largest takes, exact, and refused where they were changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import get_backend
from pulse_registry.errors import BaseMismatch, CorruptObject, UnsupportedFormat
from pulse_registry.format.merged import Merged, merged_bytes, most_merged_bytes
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import Layout, ObjectRef, Tensor

GEOMETRY = Geometry(Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(40, 10)),)))
[GROUP] = GEOMETRY.groups
WEIGHTS = (np.random.default_rng(1).standard_normal(400).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
BASE = "1" * 32


def coded(backend: str, index: Any, totals: Any) -> bytes:
    parts = [(GROUP, index, totals)] if len(index) else []
    return merged_bytes(get_backend(backend), GEOMETRY, BASE, 7, -20, parts, lambda _: [WEIGHTS])  # type: ignore[arg-type]


def read(data: bytes) -> Merged:
    return Merged.parse(ObjectRef(key="k", size=len(data), blake3=blake3(data).hexdigest()), GEOMETRY, data)


@given(
    totals=st.dictionaries(
        st.integers(0, 399),
        st.one_of(st.integers(-40, 40), st.integers(-(2**31), 2**31), st.integers(-(2**63) + 1, 2**63 - 1)).filter(
            bool
        ),
        min_size=1,
    ),
    most=st.sampled_from([2**15 - 1, 2**31 - 1, 2**63 - 1]),
)
def test_totals_come_back_exactly_in_the_fewest_bits_on_all_backends(totals: dict[int, int], most: int) -> None:
    index = np.array(sorted(totals), np.uint32)
    values = np.array([max(-most, min(most, totals[cell])) for cell in index.tolist()], np.int64)
    data = coded("reference", index, values)
    assert data == coded("numba", index, values)
    assert len(data) <= most_merged_bytes(GEOMETRY)
    found = read(data)
    largest = max(abs(value) for value in values.tolist())
    assert found.head.bits == (16 if largest < 2**15 else 32 if largest < 2**31 else 64)
    for backend in ("reference", "numba"):
        again, total = found.decode(get_backend(backend), GROUP, [WEIGHTS])  # type: ignore[arg-type]
        np.testing.assert_array_equal(again, index)
        np.testing.assert_array_equal(total, values)
        assert total.dtype == np.int64


def test_other_weights_and_changed_bytes_are_refused() -> None:
    index, values = np.array([3, 9, 200], np.uint32), np.array([70_000, -5, 9], np.int64)
    data = coded("reference", index, values)
    with pytest.raises(BaseMismatch, match="other weights"):
        read(data).decode(get_backend("reference"), GROUP, [WEIGHTS ^ np.uint16(0x4000)])
    with pytest.raises(CorruptObject, match="not those that were recorded"):
        Merged.parse(ObjectRef(key="k", size=len(data), blake3="0" * 64), GEOMETRY, data)
    with pytest.raises(CorruptObject):
        read(data[:-1])
    with pytest.raises(UnsupportedFormat):
        read(data.replace(b"pulse-merged/1", b"pulse-merged/2"))
    lying = data.replace(b'\\"bits\\":32', b'\\"bits\\":64')
    assert lying != data
    with pytest.raises(CorruptObject):
        read(lying).decode(get_backend("reference"), GROUP, [WEIGHTS])


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_says_the_same(place: int, bit: int) -> None:
    index, values = np.arange(0, 400, 3, dtype=np.uint32), np.arange(1, 135, dtype=np.int64) * 1000
    data = bytearray(coded("reference", index, values))
    data[place % len(data)] ^= 1 << bit
    try:
        again, total = read(bytes(data)).decode(get_backend("reference"), GROUP, [WEIGHTS])
    except (CorruptObject, BaseMismatch, UnsupportedFormat, KeyError):
        return
    np.testing.assert_array_equal(again, index)
    np.testing.assert_array_equal(total, values)
