"""Policies of some hundred cells, each in one piece of memory, so that all of it is compared at once."""

from __future__ import annotations

import functools
import random
from typing import Any

import ml_dtypes
import numpy as np

_TENSORS: tuple[tuple[tuple[str, Any, tuple[int, ...]], ...], ...] = (
    (("a.weight", ml_dtypes.bfloat16, (6, 16)), ("b.bias", ml_dtypes.bfloat16, (40,)), ("c.count", np.int16, (24,))),
    (("d.scale", np.float32, (5,)), ("a.weight", ml_dtypes.bfloat16, (8, 16))),
    (("a.weight", ml_dtypes.bfloat16, (96, 48)), ("b.bias", ml_dtypes.bfloat16, (700,)), ("c.count", np.int16, (24,))),
    (("a.weight", ml_dtypes.bfloat16, (12, 8)), ("b.bias", ml_dtypes.bfloat16, (24,))),
    (("a.weight", np.float32, (12, 8)), ("b.bias", np.float32, (24,))),
)
"""A run's layout changes now and then, between the first two; tensors are in the order of the layout."""
MANY_CELLS = 2
"""The kind that hundreds of ranks share."""
ROUNDS, MASTERS = 3, 4
"""The kind that is trained in outer rounds, as versions and as masters."""
_G = 0x9E3779B97F4A7C15
_BF16_TRICKS = (0x0000, 0x8000, 0x7FC0, 0xFFC1, 0x7F80, 0xFF80, 0x0001, 0x8001)


class Policy:
    """Tensors by name.

    Attributes:
        kind: which of the layouts.
        tensors: what the library is given.
    """

    def __init__(self, kind: int, cells: bytes | None = None) -> None:
        self.kind = kind
        described = _TENSORS[kind]
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for _, dtype, shape in described]
        self._memory = np.frombuffer(bytearray(cells or bytes([0xA5]) * sum(sizes)), np.uint8)
        self.tensors: dict[str, np.ndarray[Any, Any]] = {}
        at = 0
        for (name, dtype, shape), size in zip(described, sizes, strict=True):
            self.tensors[name] = self._memory[at : at + size].view(dtype).reshape(shape)
            at += size
        self._cells = self._memory[: len(self._memory) // 2 * 2].view(np.uint16)

    @property
    def bits(self) -> bytes:
        """All cells, as bytes."""
        return self._memory.tobytes()

    @property
    def digest(self) -> str:
        """The state digest, as the format's specification defines it."""
        return "".join(f"{int((factors * self._cells).sum()):016x}" for factors in _factors(self.kind))

    def train(self, rng: random.Random) -> None:
        """Change cells: mostly a few by one, now and then none, all, or some to what is rare."""
        cells, drawn = self._cells, rng.random()
        if drawn < 0.05:
            return
        if drawn < 0.08:
            cells[:] = np.frombuffer(rng.randbytes(2 * len(cells)), np.uint16)
        elif drawn < 0.15:
            for _ in range(3):
                cells[rng.randrange(len(cells))] = rng.choice(_BF16_TRICKS)
        else:
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(len(cells))
                cells[at] = (int(cells[at]) + rng.choice((-1, 1))) & 0xFFFF


@functools.cache
def _factors(kind: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return, of each lane, what each 16-bit limb of a policy's memory is multiplied with."""
    limbs = [np.dtype(dtype).itemsize // 2 for _, dtype, shape in _TENSORS[kind] for _ in range(int(np.prod(shape)))]
    factors = []
    for seed in (0x243F6A8885A308D3, 0x13198A2E03707344):
        lane = [
            (_mix(seed + (4 * (i >> 10) + limb + 1) * _G) | 1) * (_mix(~seed + ((i & 1023) + 1) * _G) >> 32 | 1)
            for i, count in enumerate(limbs)
            for limb in range(count)
        ]
        factors.append(np.array([factor % 2**64 for factor in lane], np.uint64))
    return tuple(factors)


def _mix(x: int) -> int:
    x %= 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31
