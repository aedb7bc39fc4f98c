"""Regions of a tensor as slices: what is copied through the slices is what a loader would have copied."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.integrations.loader.region import MOST_SLICES, Region, Scattered, slices_of
from pulse_registry.weights.slice import Slice, parts_of


@st.composite
def views(draw: st.DrawFn, whole: torch.Tensor) -> torch.Tensor:
    """A view of a tensor, such as a loader takes: rows, columns, heads, every second one, transposed, flattened."""
    view = whole
    if view.dim() and draw(st.booleans()):
        view = view.flatten()[draw(st.integers(0, view.numel() - 1)) :]
    for _ in range(draw(st.integers(0, 4))):
        if not view.dim():
            break
        d = draw(st.integers(0, view.dim() - 1))
        size = view.shape[d]
        match draw(st.sampled_from(("narrow", "transpose", "select", "unflatten", "step"))):
            case "narrow":
                at = draw(st.integers(0, size - 1))
                view = view.narrow(d, at, draw(st.integers(1, size - at)))
            case "transpose":
                view = view.transpose(d, draw(st.integers(0, view.dim() - 1)))
            case "select":
                view = view.select(d, draw(st.integers(0, size - 1)))
            case "unflatten":
                factors = [n for n in range(2, size + 1) if size % n == 0]
                if factors:
                    n = draw(st.sampled_from(factors))
                    view = view.unflatten(d, (n, size // n))
            case "step":
                view = view.movedim(d, 0)[draw(st.integers(0, size - 1)) :: draw(st.integers(1, 2))].movedim(0, d)
    return view


@st.composite
def places(draw: st.DrawFn, shape: torch.Size) -> torch.Tensor:
    """A view of live memory, of a shape, of any strides; all its cells are -1."""
    order = draw(st.permutations(range(len(shape))))
    room = torch.full([shape[d] + draw(st.integers(0, 2)) for d in order] + [draw(st.integers(1, 2))], -1)[..., 0]
    for k, d in enumerate(order):
        room = room.narrow(k, draw(st.integers(0, room.shape[k] - shape[d])), shape[d])
    return room.permute([order.index(d) for d in range(len(shape))])


def cells(whole: torch.Tensor, one: Slice) -> torch.Tensor:
    """The cells of a tensor that a slice is."""
    if isinstance(one.at, int):
        return whole.flatten()[one.at : one.at + one.tensor.numel()].reshape(one.tensor.shape)
    return whole[tuple(slice(at, at + size) for at, size in zip(one.at, one.tensor.shape, strict=True))]


@given(st.data(), st.lists(st.sampled_from((1, 2, 3, 4, 6, 8)), max_size=3))
def test_slices_hold_each_cell_where_the_loader_would_have_copied_it(data: st.DataObject, shape: list[int]) -> None:
    whole = torch.arange(math.prod(shape)).reshape(shape)
    view = data.draw(views(whole))
    live = data.draw(places(view.shape))
    found = slices_of(Region(view.storage_offset(), tuple(view.shape), view.stride()), live, shape)
    for one in found:
        one.tensor.copy_(cells(whole, one))  # type: ignore[union-attr, arg-type]
    assert torch.equal(live, view)
    assert sum(one.tensor.numel() for one in found) == view.numel()  # type: ignore[union-attr]
    assert all(part.name == "w" for part, _ in parts_of("w", found or [Slice(live[:0], shape, 0)]))


@pytest.mark.parametrize(
    ("cut", "count"),
    [
        (lambda w: w, 1),
        (lambda w: w[2:5], 1),
        (lambda w: w[:, 3:6], 1),
        (lambda w: w.t(), 1),
        (lambda w: w.view(4, 3, 8), 1),
        (lambda w: w.view(4, 3, 8)[:, 1], 4),  # one of three, of each head
        (lambda w: w.flatten()[7:60], 1),
        (lambda w: w.view(12, 2, 4)[:, :, :2], 2),  # two bands of columns
        (lambda w: w[:, 0], 1),
        (lambda w: w[::2], 6),
    ],
)
def test_what_lies_together_is_one_slice(cut: object, count: int) -> None:
    whole = torch.arange(96).reshape(12, 8)
    view = cut(whole)  # type: ignore[operator]
    live = torch.zeros(view.shape, dtype=torch.int64)
    assert len(slices_of(Region(view.storage_offset(), tuple(view.shape), view.stride()), live, (12, 8))) == count


def test_heads_that_are_apart_in_live_memory_alone_are_one_run() -> None:
    live = torch.zeros(4, 3, 2, 8)[:, 1]
    assert len(slices_of(Region(0, (4, 2, 8), (16, 8, 1)), live, (8, 8))) == 1


def test_nothing_of_a_tensor_is_no_slice() -> None:
    assert slices_of(Region(0, (0, 8), (8, 1)), torch.zeros(0, 8), (12, 8)) == []


def test_a_cell_that_goes_to_several_places_is_refused() -> None:
    with pytest.raises(Scattered, match="several places"):
        slices_of(Region(0, (4, 8), (0, 1)), torch.zeros(4, 8), (8,))


def test_cells_that_lie_scattered_are_refused() -> None:
    size = 2 * MOST_SLICES + 2
    with pytest.raises(Scattered, match="in more than 4,096 places"):
        slices_of(Region(0, (size // 2,), (2,)), torch.zeros(size // 2), (size,))
