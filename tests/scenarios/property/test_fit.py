"""Models wider than a version, or tied otherwise: they hold what a plain reference says, or are left as they were."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry.errors import LayoutMismatch
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import quick

NAMES = "abcd"
CELLS = 40
"""So that a tensor is in several groups, and a group has several tensors."""
TIES = st.tuples(*[st.integers(0, 3)] * 4)
"""Which memory each name has."""
VERSIONS = st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=5)
"""For each version, the content of each memory."""
FORMS = ["bf16", "f32", "f32, strided", "bf16, strided"]


def content(number: int) -> np.ndarray:
    """Return one of three contents that differ in a few cells, with NaN payloads and signed zeros among them."""
    cells = np.arange(CELLS, dtype=np.uint16) * 3 + 0x7F70
    cells[[3, 31, 32, 39]] = [0x8000 + number, 0x7F81 + number, 0, 7 * number]
    cells[number] = 0
    return cells


def memory(form: str) -> np.ndarray:
    """Return memory of noise in a form."""
    kind: Any = np.float32 if form.startswith("f32") else ml_dtypes.bfloat16
    if "strided" in form:
        return np.full((CELLS, 2), 1.2345, kind)[:, 0]
    return np.full(CELLS, 1.2345, kind)


def cells_of(array: np.ndarray) -> list[int]:
    """Return the bits of each cell, as those of an F32."""
    bits = np.ascontiguousarray(array)
    wide = bits.view(np.uint32) if bits.itemsize == 4 else bits.view(np.uint16).astype(np.uint32) << 16
    return wide.tolist()


@given(
    trainer=TIES,
    worker=TIES,
    versions=VERSIONS,
    forms=st.tuples(*[st.sampled_from(FORMS)] * 4),
    visits=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=5),
    coder=st.sampled_from(["gap", "class"]),
    keyframe_share=st.sampled_from([0.01, 1e9]),
)
@settings(max_examples=40)
def test_a_model_holds_what_its_memory_can_and_stays_as_it_was_where_it_can_not(
    trainer: tuple[int, ...],
    worker: tuple[int, ...],
    versions: list[tuple[int, ...]],
    forms: tuple[str, ...],
    visits: list[tuple[int, bool]],
    coder: str,
    keyframe_share: float,
) -> None:
    with small_groups(), quick(DictStore(), coder=coder, keyframe_share=keyframe_share) as registry:
        memories = {number: content(0).view(ml_dtypes.bfloat16) for number in trainer}
        for step, contents in enumerate(versions):
            for number, cells in memories.items():
                cells.view(np.uint16)[:] = content(contents[number])
            registry.push(step, {name: memories[number] for name, number in zip(NAMES, trainer, strict=True)})
        own = {number: memory(forms[number]) for number in worker}
        into = {name: own[number] for name, number in zip(NAMES, worker, strict=True)}
        for visit, replace in visits:
            version = visit % len(versions)
            wanted = {
                name: (content(versions[version][number]).astype(np.uint32) << 16).tolist()
                for name, number in zip(NAMES, trainer, strict=True)
            }
            fits = all(wanted[one] == wanted[other] for one in NAMES for other in NAMES if into[one] is into[other])
            before = {name: cells_of(array) for name, array in into.items()}
            if fits:
                registry.pull(version, into=into, cast=True, replace=replace)
                assert {name: cells_of(array) for name, array in into.items()} == wanted
                assert registry.verify(version, model=into, cast=True).version == version
            else:
                with pytest.raises(LayoutMismatch, match=f"are one in the model, and differ in version {version}"):
                    registry.pull(version, into=into, cast=True, replace=replace)
                assert {name: cells_of(array) for name, array in into.items()} == before
