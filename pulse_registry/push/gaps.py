"""Gaps and overlaps in what the ranks of a sharded model hold: which tensor it is, and which ranks, for a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np

from pulse_registry.peers.call import named
from pulse_registry.peers.peers import Peers
from pulse_registry.weights.box import Box
from pulse_registry.weights.cell_space import Geometry

Boxes: TypeAlias = Mapping[Box, Sequence[int]]
"""The boxes of one tensor, each with the ranks that hold it."""
_MOST_SHOWN: Final = 4
_NUMBER: Final = np.dtype("<i8")


def what_is_amiss(peers: Peers, geometry: Geometry, mine: Sequence[tuple[int, Box]]) -> str:
    """Return what is wrong with slices that are not each cell of the model once; a collective.

    Args:
        peers: the ranks.
        geometry: of the whole layout.
        mine: this rank's boxes, each with the number of its tensor.

    Returns:
        A sentence that names the tensor and the ranks, the same on all of them.
    """
    rows = [(number, len(box.shape), *box.shape, *box.offsets, *box.sizes) for number, box in mine]
    held: dict[int, dict[Box, list[int]]] = {}
    for rank, said in enumerate(peers.all_gather(b"".join(np.array(row, _NUMBER).tobytes() for row in rows), "slices")):
        numbers, at = np.frombuffer(said, _NUMBER).tolist(), 0
        while at < len(numbers):
            tensor, dims, end = numbers[at], numbers[at + 1], at + 2 + 3 * numbers[at + 1]
            box = Box.of(*(numbers[at + 2 + k * dims : at + 2 + (k + 1) * dims] for k in range(3)))
            held.setdefault(tensor, {}).setdefault(box, []).append(rank)
            at = end
    cells = {number: sum(box.cells for box in boxes) for number, boxes in held.items()}
    order = sorted(held, key=lambda number: cells[number] == geometry.sizes[number])
    for number in order:
        boxes, tensor = held[number], geometry.layout.tensors[number]
        title = f"tensor {tensor.name!r}, {list(tensor.shape)}"
        for one, other in combinations(boxes, 2):
            if one.meets(other):
                return (
                    f"{title}: {place(one)} on {named(boxes[one])} and {place(other)} on {named(boxes[other])} overlap "
                    "without being equal"
                )
        if cells[number] < geometry.sizes[number]:
            return (
                f"{title}: {geometry.sizes[number] - cells[number]} of its {geometry.sizes[number]} cells are on no "
                f"rank. There are {_shown(boxes)}"
            )
    return f"the slices of all ranks are not each of the model's {geometry.cells} cells once"


def place(box: Box) -> str:
    """Return where a box lies in its tensor, as messages say it."""
    if box.start is not None:
        return f"cells {box.start} to {box.start + box.cells - 1}"
    ends = ", ".join(f"{offset}:{offset + size}" for offset, size in zip(box.offsets, box.sizes, strict=True))
    return f"box [{ends}] of {list(box.shape)}"


def _shown(boxes: Boxes) -> str:
    said = [f"{place(box)} on {named(ranks)}" for box, ranks in boxes.items()]
    more = f"; {len(said) - _MOST_SHOWN} more" if len(said) > _MOST_SHOWN else ""
    return "; ".join(said[:_MOST_SHOWN]) + more
