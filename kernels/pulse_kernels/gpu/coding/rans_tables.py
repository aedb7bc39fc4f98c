"""Tables of frequencies on the device: from counts (writing) and from stored levels (reading), one program a table.

A table is 256 int32 of ``frequency | sum of those below << 16`` by symbol; for reading also 4096 bytes, the symbol of
each slot. The integer steps are those of ``pulse_kernels.format.frequencies``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pulse_kernels.format.frequencies import BOUNDS, SCALE, WEIGHTS
from pulse_kernels.format.gap_tables import PARAMETERS, geometric_tables
from pulse_kernels.gpu.language import jit, tl

SYMBOLS = 256
"""Room for the symbols of a table."""
TABLE_BYTES = 2 + 160
"""The most bytes of a stored table."""


@jit
def share_out(weight: tl.tensor) -> Any:
    """Share 4096 out by the weights of 256 symbols, int32, one at least for each that has any; pack the table."""
    symbol = tl.arange(0, 256)
    present = weight > 0
    room = 4096 - tl.sum(present.to(tl.int32), 0)
    share = tl.where(present, 1 + weight * room // tl.maximum(tl.sum(weight, 0), 1), 0)
    # What is left goes to the symbol of the greatest weight, the lowest of several.
    rank = weight * 256 + (255 - symbol)
    greatest = present & (rank == tl.max(rank, 0))
    share += tl.where(greatest, 4096 - tl.sum(share, 0), 0)
    return share | ((tl.cumsum(share, 0) - share) << 16)


@jit
def make_tables(
    counts: tl.tensor,
    weights: tl.tensor,
    bounds: tl.tensor,
    tables: tl.tensor,
    levels: tl.tensor,
    ends: tl.tensor,
) -> None:
    """Write a table from counts: packed, its levels, its first symbol and number; of an empty one only the latter."""
    table = tl.program_id(0).to(tl.int64)
    symbol = tl.arange(0, 256)
    count = tl.load(counts + table * 256 + symbol).to(tl.int64)
    most = tl.max(count, 0)
    if most > 0:
        present = count > 0
        scaled = count * 8192 // most
        over = scaled[:, None] > tl.load(bounds + tl.arange(0, 32))[None, :]
        level = tl.where(present, 1 + tl.sum(over.to(tl.int32), 1), 0)
        tl.store(tables + table * 256 + symbol, share_out(tl.load(weights + level)))
        tl.store(levels + table * 256 + symbol, level.to(tl.uint8))
        first = tl.min(tl.where(present, symbol, 256), 0)
        tl.store(ends + table * 2, first)
        tl.store(ends + table * 2 + 1, tl.max(tl.where(present, symbol, -1), 0) + 1 - first)
    else:
        tl.store(ends + table * 2, 0)
        tl.store(ends + table * 2 + 1, 0)


@jit
def read_tables(
    data: tl.tensor,
    at: tl.tensor,
    weights: tl.tensor,
    tables: tl.tensor,
    slots: tl.tensor,
) -> None:
    """Write a table from its stored bytes, which were checked, and the symbol of each slot."""
    table = tl.program_id(0).to(tl.int64)
    symbol = tl.arange(0, 256)
    stored = data + tl.load(at + table)
    k = symbol - tl.load(stored).to(tl.int32)
    some = (k >= 0) & (k < tl.load(stored + 1).to(tl.int32))
    bit = tl.where(some, k * 5, 0)
    low = tl.load(stored + 2 + (bit >> 3), mask=some, other=0).to(tl.int32)
    # The second byte is the table's own only where a level crosses into it.
    crosses = some & ((bit & 7) > 3)
    high = tl.load(stored + 3 + (bit >> 3), mask=crosses, other=0).to(tl.int32)
    level = ((low | (high << 8)) >> (bit & 7)) & 31
    packed = share_out(tl.load(weights + tl.where(some, level, 0)))
    tl.store(tables + table * 256 + symbol, packed)
    end = (packed & 0xFFFF) + (packed >> 16)
    slot = tl.arange(0, 4096)
    found = tl.zeros((4096,), tl.int32)
    for half in tl.static_range(8):
        probe = found + (128 >> half)
        found = tl.where(tl.gather(end, probe - 1, 0) <= slot, probe, found)
    tl.store(slots + table * 4096 + slot, found.to(tl.uint8))


@dataclass(frozen=True, slots=True)
class Constants:
    """What every launch reads; on the device.

    Attributes:
        weights: int32 [32], of levels 0 to 31.
        bounds: int64 [32], the greatest scaled count of levels 1 to 30, then numbers that no count exceeds.
        gap_tables: int32 [128, 256], the geometric tables of ``class``.
        gap_slots: uint8 [128, 4096], the symbol of each of their slots.
        odds: float64 [128]: parameter j is right for odds below ``odds[j - 1]`` and not below ``odds[j]``; then zeros.
    """

    weights: torch.Tensor
    bounds: torch.Tensor
    gap_tables: torch.Tensor
    gap_slots: torch.Tensor
    odds: torch.Tensor


@functools.cache
def constants(device: torch.device) -> Constants:
    """Return the constants on a device, uploaded once."""
    geometric = geometric_tables().astype(np.int32)
    tables = np.zeros((PARAMETERS, SYMBOLS), np.int32)
    tables[:, : geometric.shape[1]] = geometric | (np.cumsum(geometric, 1) - geometric) << 16
    slots = np.stack([np.repeat(np.arange(len(row)), row) for row in geometric]).astype(np.uint8)
    bounds = np.full(32, 2**62, np.int64)
    bounds[: len(BOUNDS)] = BOUNDS
    arrays = (np.array((0, *WEIGHTS), np.int32), bounds, tables, slots, odds_bounds())
    return Constants(*(torch.from_numpy(array).to(device) for array in arrays))


def odds_bounds() -> Any:
    """Return the odds between neighbouring parameters, float64 [128]: 2**((63 - 2 j) / 8); the last one is 0.

    A count of changed cells against one of unchanged cells compares with ``bound * unchanged`` as with the exact bound:
    a quotient of integers up to 2**25 that comes nearer to an irrational than float64 tells is one of its convergents,
    and none of those comes so near (there is a test).
    """
    bounds = 2.0 ** ((63 - 2 * np.arange(PARAMETERS)) / 8)
    bounds[-1] = 0
    return bounds


@dataclass(frozen=True, slots=True)
class MadeTables:
    """Tables made from counts: ``tables`` int32 [n, 256], ``levels`` uint8 [n, 256], ``ends`` int32 [n, 2].

    ``ends`` are a table's first symbol and number of symbols. Where the number is 0, the rest says nothing.
    """

    tables: torch.Tensor
    levels: torch.Tensor
    ends: torch.Tensor


def tables_from_counts(counts: torch.Tensor) -> MadeTables:
    """Make tables from int32 counts [n, 256]."""
    known = constants(counts.device)
    made = MadeTables(
        torch.empty_like(counts),
        torch.empty(counts.shape, dtype=torch.uint8, device=counts.device),
        torch.empty((len(counts), 2), dtype=torch.int32, device=counts.device),
    )
    if len(counts):
        make_tables[(len(counts),)](counts, known.weights, known.bounds, made.tables, made.levels, made.ends)
    return made


def tables_from_bytes(data: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tables [n, 256], slots [n, 4096]) of the stored tables that begin at ``at``; they were checked."""
    tables = torch.empty((len(at), SYMBOLS), dtype=torch.int32, device=data.device)
    slots = torch.empty((len(at), SCALE), dtype=torch.uint8, device=data.device)
    if len(at):
        read_tables[(len(at),)](data, at, constants(data.device).weights, tables, slots, num_warps=8)
    return tables, slots
