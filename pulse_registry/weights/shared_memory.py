"""Shared memory of views: whether some bytes are cells of two slices, so that what one is given the other loses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_registry.weights.model import View


def first_overlap(views: Iterable[View]) -> tuple[View, View] | None:
    """Return two views, neither of which is the other one again, that have bytes in common; None if there are none.

    Only addresses and strides are looked at, so that the memory may be a device's.
    """
    placed = sorted(
        ((_device(view), *_ends(array), number, array, view) for number, view, array in _arrays(views)),
        key=lambda row: row[:4],
    )
    reaching: list[tuple[str, int, int, int, npt.NDArray[Any], View]] = []
    for row in placed:
        device, start, _, _, array, view = row
        reaching = [other for other in reaching if other[0] == device and other[2] > start]
        for other in reaching:
            if other[5].identity != view.identity and np.shares_memory(other[4], array):
                return other[5], view
        reaching.append(row)
    return None


class _Memory:
    """Memory that is described, and never touched."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{itemsize}",
        }


def _arrays(views: Iterable[View]) -> Iterable[tuple[int, View, npt.NDArray[Any]]]:
    for number, view in enumerate(views):
        if not view.size:
            continue
        if view.on_host:
            yield number, view, view.cells
        else:
            tensor, width = view.tensor, view.tensor.element_size()
            strides = tuple(step * width for step in tensor.stride())
            yield number, view, np.asarray(_Memory(tensor.data_ptr(), tuple(tensor.shape), strides, width))


def _ends(array: npt.NDArray[Any]) -> tuple[int, int]:
    start = stop = int(array.__array_interface__["data"][0])
    for length, stride in zip(array.shape, array.strides, strict=True):
        start, stop = start + min(0, (length - 1) * stride), stop + max(0, (length - 1) * stride)
    return start, stop + array.itemsize


def _device(view: View) -> str:
    return "" if view.on_host else str(view.tensor.device)
