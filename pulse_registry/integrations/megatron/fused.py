"""Fused tensors: which of their rows are rows of which other tensors.

Always by rows of the whole tensor, and never by counts of heads on a rank: with fewer KV heads than ranks, a rank holds
part of a group, and perhaps no row of K or V.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from pulse_registry.errors import InvalidArgument, InvalidModel


@dataclass(frozen=True, slots=True)
class Band:
    """Rows of a fused tensor that are rows of another tensor.

    Attributes:
        name: of the other tensor.
        rows: how many it has.
        start, stop: rows of the fused tensor.
        at: the row of the other tensor that ``start`` is.
    """

    name: str
    rows: int
    start: int
    stop: int
    at: int = 0


class Fused(Protocol):
    """Rule for a fused tensor."""

    def bands(self, rows: int) -> Sequence[Band]:
        """Return what the rows of the whole fused tensor are, of which there are so many; others are left out.

        Raises:
            InvalidModel: there can't be so many.
        """
        ...

    def named(self, numbers: Mapping[str, str]) -> Self:
        """Return the rule with the numbers that a pattern has found, by name, filled into its names."""
        ...


@dataclass(frozen=True, slots=True)
class QKV:
    """Rule for ``linear_qkv``: group by group, the query heads of a KV head, then its key, then its value.

    Attributes:
        q, k, v: names of the three.
        heads: of queries, of the whole model.
        kv_heads: of keys and values, of the whole model: Megatron's query groups.
        head_dim: rows of a head.
    """

    q: str
    k: str
    v: str
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.heads, self.kv_heads, self.head_dim) < 1 or self.heads % self.kv_heads:
            raise InvalidArgument(
                f"{self.heads} heads, {self.kv_heads} KV heads and head_dim {self.head_dim}: all are 1 or more, and "
                "heads a multiple of KV heads"
            )

    def bands(self, rows: int) -> list[Band]:
        """Return three bands a group."""
        heads, size = self.heads // self.kv_heads, self.head_dim
        if rows != (heads + 2) * self.kv_heads * size:
            raise InvalidModel(
                f"the fused tensor of {self.q!r}, {self.k!r} and {self.v!r} has {rows} rows, and {self.heads} heads "
                f"and {self.kv_heads} KV heads of {size} rows make {(heads + 2) * self.kv_heads * size}"
            )
        found, start = [], 0
        for group in range(self.kv_heads):
            for name, held in ((self.q, heads), (self.k, 1), (self.v, 1)):
                stop = start + held * size
                found.append(Band(name, held * self.kv_heads * size, start, stop, group * held * size))
                start = stop
        return found

    def named(self, numbers: Mapping[str, str]) -> QKV:
        """Return the rule with numbers in its names."""
        q, k, v = (name.format_map(numbers) for name in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v)


@dataclass(frozen=True, slots=True)
class GateUp:
    """Rule for ``linear_fc1`` of a gated MLP (SwiGLU): all rows of the gate, then those of the up projection.

    On a rank they are the halves of its parameter; Megatron's factory tells where each lies in the whole tensor.

    Attributes:
        gate, up: names of the two.
    """

    gate: str
    up: str

    def bands(self, rows: int) -> list[Band]:
        """Return two bands."""
        if rows % 2:
            raise InvalidModel(f"the fused tensor of {self.gate!r} and {self.up!r} has {rows} rows: no two halves")
        half = rows // 2
        return [Band(self.gate, half, 0, half), Band(self.up, half, half, rows)]

    def named(self, numbers: Mapping[str, str]) -> GateUp:
        """Return the rule with numbers in its names."""
        return GateUp(self.gate.format_map(numbers), self.up.format_map(numbers))
