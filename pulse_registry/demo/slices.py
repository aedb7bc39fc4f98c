"""Which part of each tensor a rank of the sharded worker holds: that of a tensor-parallel inference engine. Pure."""

from __future__ import annotations

_COLUMNS = ("o_proj.weight", "down_proj.weight")
"""Ends of the names of row-parallel layers, which take what other layers' rows made: of these a rank holds columns."""


def slice_of(name: str, shape: tuple[int, ...], rank: int, ranks: int) -> tuple[slice, ...]:
    """Return the part of a tensor that a rank holds, as an index for each dimension.

    Rows of a matrix, or columns, as even as can be; vectors whole, on all ranks.
    """
    index = [slice(0, size) for size in shape]
    if len(shape) > 1:
        along = 1 if name.endswith(_COLUMNS) else 0
        index[along] = slice(shape[along] * rank // ranks, shape[along] * (rank + 1) // ranks)
    return tuple(index)
