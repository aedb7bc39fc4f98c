"""Regions: what a loader copies of a tensor, as the slices that it comes to.

A loader takes views of a checkpoint's tensor (rows, columns, heads, experts, transposed or not) and copies each into a
view of a live parameter. Both are strided, so one copy says of many cells where they live.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pulse_registry.weights.slice import Slice

if TYPE_CHECKING:
    import torch

MOST_SLICES: Final = 4096
"""Slices of one region at most: what takes more lies scattered, and is no slice of a tensor."""


class Scattered(Exception):
    """A region is not made of slices, or of too many; the message says why."""


@dataclass(frozen=True, slots=True)
class Region:
    """Cells of a tensor, in the order of a view of it.

    Attributes:
        offset: flat index, in the row-major tensor, of the view's first cell.
        shape: of the view.
        strides: of the view, in cells of the tensor.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A dimension of a region: its size, and its steps in the tensor and in the memory of the live cells."""

    size: int
    stride: int
    live: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """Cells of a region that are left to be cut, with their first cell in the tensor and in the live memory."""

    axes: tuple[_Axis, ...]
    at: int
    live_at: int

    def parts(self, axis: _Axis) -> Iterator[_Cut]:
        """Yield the cells at each index of one axis."""
        others = tuple(one for one in self.axes if one is not axis)
        for k in range(axis.size):
            yield _Cut(others, self.at + k * axis.stride, self.live_at + k * axis.live)


def slices_of(region: Region, live: torch.Tensor, of: Sequence[int]) -> list[Slice]:
    """Return the slices of a tensor that a region is made of, each with its view of the live cells; copies nothing.

    A box of the tensor is one slice; rows that lie apart, such as the heads of a fused parameter, are one each.

    Args:
        region: of the tensor.
        live: where its cells are copied to; of the region's shape.
        of: shape of the whole tensor.

    Raises:
        Scattered: one cell goes to several places, or it takes more than ``MOST_SLICES`` slices.
    """
    if not math.prod(region.shape):
        return []
    axes = [_Axis(*one) for one in zip(region.shape, region.strides, live.stride(), strict=True) if one[0] > 1]
    if any(axis.stride == 0 for axis in axes):
        raise Scattered("a cell is copied to several places")
    axes.sort(key=lambda axis: -axis.stride)
    left, found = [_Cut(tuple(axes), region.offset, int(live.storage_offset()))], []
    while left:
        cut = left.pop()
        axis, made = _sliced(cut, live, tuple(of))
        if made is not None:
            found.append(made)
        elif axis is not None:
            left += cut.parts(axis)
        if len(left) + len(found) > MOST_SLICES:
            raise Scattered(f"its cells lie apart, in more than {MOST_SLICES:,} places")
    return found


def _sliced(cut: _Cut, live: torch.Tensor, of: tuple[int, ...]) -> tuple[_Axis | None, Slice | None]:
    """Return the cells as one slice; or the axis along which they have to be cut first."""
    strides = [math.prod(of[k + 1 :]) for k in range(len(of))]
    sizes, steps, offsets = [1] * len(of), [1] * len(of), [cut.at // t % n for t, n in zip(strides, of, strict=True)]
    axes = _unfolded(cut, strides, of, offsets)
    taken: dict[int, list[_Axis]] = {}
    for axis in axes:
        # The dimension within which a step of this axis stays; those of one index have no steps.
        d = next(k for k, (n, t) in enumerate(zip(of, strides, strict=True)) if n > 1 and t <= axis.stride)
        taken.setdefault(d, []).append(axis)
    for d, held in taken.items():
        joined = _joined(held)
        axis = joined[0]
        if len(joined) > 1 or axis.stride != strides[d] or offsets[d] + axis.size > of[d]:
            return _apart(cut, held, live, of)
        sizes[d], steps[d] = axis.size, axis.live
    return None, Slice(live.as_strided(sizes, steps, cut.live_at), of=of, at=tuple(offsets))


def _unfolded(cut: _Cut, strides: Sequence[int], of: Sequence[int], offsets: Sequence[int]) -> Iterator[_Axis]:
    """Yield the axes of a cut, in the order of their strides: one that runs over several whole dimensions as those."""
    for axis in cut.axes:
        d = next((k for k, t in enumerate(strides) if t == axis.stride and of[k] > 1), None)
        rest, inner = axis, []
        while d and rest.size > of[d] and rest.size % of[d] == 0 and not offsets[d] and rest.stride == strides[d]:
            inner.append(_Axis(of[d], rest.stride, rest.live))
            rest = _Axis(rest.size // of[d], rest.stride * of[d], rest.live * of[d])
            d -= 1
            while d and of[d] == 1:
                d -= 1
        yield rest
        yield from reversed(inner)


def _joined(axes: Sequence[_Axis]) -> list[_Axis]:
    """Join axes of one dimension that follow on each other, in the tensor and in the live memory."""
    found = [axes[0]]
    for axis in axes[1:]:
        last = found[-1]
        if last.stride == axis.size * axis.stride and last.live == axis.size * axis.live:
            found[-1] = replace(axis, size=last.size * axis.size)
        else:
            found.append(axis)
    return found


def _apart(
    cut: _Cut, held: Sequence[_Axis], live: torch.Tensor, of: tuple[int, ...]
) -> tuple[_Axis | None, Slice | None]:
    """Return the cells as a run of the flattened tensor; if they are none, the axis to cut along."""
    after = 1
    for axis in reversed(cut.axes):
        if axis.stride != after:
            break
        after *= axis.size
    else:
        sizes, steps = [axis.size for axis in cut.axes], [axis.live for axis in cut.axes]
        return None, Slice(live.as_strided(sizes, steps, cut.live_at), of=of, at=cut.at)
    # The outer one of those that share a dimension; of an axis that was unfolded, itself.
    return next((axis for axis in cut.axes if axis in held), cut.axes[0]), None
