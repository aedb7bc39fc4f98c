"""Heads of coded groups, parsed for all groups at once, are refused where the reference refuses them."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pulse_kernels import CodecError, CoderName
from pulse_kernels.format.group_bytes import split
from pulse_kernels.format.rans import CHUNK
from pulse_kernels.format.symbols import most_value_symbols
from pulse_kernels.gpu.coding.parse import PADDING, Parsed, join, parse
from pulse_kernels.reference.coding import tables_of
from tests.unit.kernels.gpu.coding import CODERS, Step, moved, weights
from tests.unit.kernels.gpu.inputs import places_of, policy

CELLS = 2000


@functools.cache
def step() -> Step:
    model = policy("cpu", "BF16", (CELLS,), group=CELLS)
    model.cells[:] = weights(CELLS)
    return Step(model, moved(model.cells, places_of("many", CELLS), model))


def parsed(coder: CoderName, changed: list[int], groups: list[bytes]) -> Parsed:
    data = np.empty(sum(map(len, groups)) + PADDING, np.uint8)
    offsets = join(groups, data)
    most = most_value_symbols(step().model.cell_type)
    return parse(data, offsets, np.array(changed), coder == "class", most, CHUNK)


def refused(coder: CoderName, changed: int, group: bytes) -> bool:
    """Tell whether the reference refuses a group before it decodes a word."""
    try:
        tables_of(split(coder == "class", changed, group), step().model.cell_type)
    except CodecError:
        return True
    return False


@pytest.mark.parametrize("coder", CODERS)
def test_a_group_is_refused_if_the_reference_refuses_it(coder: CoderName) -> None:
    (changed,), (whole,) = step().counts(), step().coded(coder, CHUNK)
    head = len(whole) - 2 * len(split(coder == "class", changed, whole).words)
    flips = [(at, bit) for at in range(head) for bit in (0, 1, 4, 7)]
    mutants = [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at, bit in flips]
    mutants += [whole[:size] for size in range(1, len(whole), 29)] + [whole + b"\0", whole + b"\0\0"]
    verdicts = []
    for mutant in mutants:
        verdicts.append(refused(coder, changed, mutant))
        if verdicts[-1]:
            with pytest.raises(CodecError, match="coded group 1: "):
                parsed(coder, [changed, changed], [whole, mutant])
        else:
            parsed(coder, [changed, changed], [whole, mutant])
    assert set(verdicts) == {True, False}


@pytest.mark.parametrize("coder", CODERS)
def test_groups_without_changes_have_no_bytes(coder: CoderName) -> None:
    (changed,), (whole,) = step().counts(), step().coded(coder, CHUNK)
    found = parsed(coder, [0, changed, 0], [b"", whole, b""])
    assert found.run_end[-1] == changed
    assert set(found.run_group.tolist()) == {1}
    with pytest.raises(CodecError, match="coded group 0: it has bytes, and no changed cells"):
        parsed(coder, [0], [whole])
    with pytest.raises(CodecError, match="coded group 0: the group is shorter than its head"):
        parsed(coder, [changed], [b""])


@pytest.mark.parametrize("sizes", [[], [5], [0, 9, 0, 1, 4000, 0, 17, 2, 2, 300, 1, 8], [3] * 100, [0] * 20])
def test_many_bytes_are_put_together_by_threads_as_few_are_by_one(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(len(sizes))
    groups = [random.bytes(size) for size in sizes]
    monkeypatch.setattr("pulse_kernels.gpu.coding.parse.COPIED", 0)
    out = np.full(sum(sizes) + PADDING, 255, np.uint8)
    offsets = join(groups, out)
    assert offsets.tolist() == [0, *np.cumsum(sizes)]
    assert out.tobytes() == b"".join(groups) + bytes(PADDING)
