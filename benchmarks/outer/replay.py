"""Bytes of recorded rounds: the pseudo-gradients of real trainers, sent as levels and in others' ways.

A replay begins with the recorded BF16 weights and makes its own outer steps; in each round the trainers' weights are
those less the recorded pseudo-gradients.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
import zstandard
from rich.console import Console

from benchmarks.outer.inner import Floats
from benchmarks.outer.methods import Levels, Sent, Values
from benchmarks.outer.rounds import Rounds
from benchmarks.outer.sample import cut
from benchmarks.outer.speed import GAINS
from benchmarks.results import OUT, Row, machine, versions
from benchmarks.show import finish
from pulse_kernels.protocol import OuterRates
from pulse_registry.outer.mean import GroupLevels

TITLE = "Bytes of recorded outer rounds: SmolLM2-135M, policy gradient, 8 inner steps, 4 trainers"
RATES = OuterRates(0.7, 0.9)
PAYLOAD_LIMIT = {1.0: 100.0, 7.0: 30.0}
BITS_LIMIT, AT_DENSITY, ENTROPY_LIMIT = 8.0, 0.03, 1.06
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Told:
    """What one trainer sent to one round.

    Attributes:
        round, trainer: which.
        density: share of the cells.
        entries, nbytes: that were sent.
        head: of the bytes, those before the first coded group.
        entropy: bits an entry of an ideal code that knows the classes of the BF16 weights.
    """

    round: int
    trainer: int
    density: float
    entries: int
    nbytes: int
    head: int
    entropy: float

    @property
    def bits(self) -> float:
        """Of an entry, the head included."""
        return 8 * self.nbytes / max(1, self.entries)


@dataclass(frozen=True, slots=True)
class Others:
    """Bytes of one trainer's part of one round in the ways that send float32 values, by way."""

    round: int
    trainer: int
    density: float
    nbytes: dict[str, int]


def levels(rounds: Rounds, gain: float, say: Say = print) -> tuple[list[Told], list[float]]:
    """Replay with levels; return what was sent, and the share of BF16 cells that each round's step changes."""
    method = Levels(rounds.shapes, rounds.start, rounds.trainers, RATES, gain)
    found, patches = [], []
    for round_ in range(1, rounds.rounds + 1):
        for trainer, sent in _contributed(method, rounds, round_):
            coded = b"" if method.coded is None else method.coded
            groups = sum(_coded_sizes(coded)) if coded else 0
            entropy = _entropy(method) / max(1, sent.entries)
            one = Told(round_, trainer, sent.density, sent.entries, sent.nbytes, sent.nbytes - groups, entropy)
            found.append(one)
            say(
                f"gain {gain:g}, round {round_}, trainer {trainer}: {100 * one.density:.2f} %, {one.bits:.2f} bits "
                f"(entropy {entropy:.2f}), {sent.factor:.0f} x less"
            )
        before = [method.outer.version_cells(group) for group in method.geometry.groups]
        method.step()
        after = (method.outer.version_cells(group) for group in method.geometry.groups)
        changed = sum(int((old != new).sum()) for old, new in zip(before, after, strict=True))
        patches.append(changed / method.geometry.cells)
    return found, patches


def others(rounds: Rounds, gain: float, say: Say = print) -> list[Others]:
    """Replay with float32 values; return what each way of writing them takes."""
    start = (rounds.start.astype(np.uint32) << 16).view(np.float32)
    method = _Written(start, rounds.trainers, RATES, gain)
    found = []
    for round_ in range(1, rounds.rounds + 1):
        for trainer, sent in _contributed(method, rounds, round_):
            found.append(Others(round_, trainer, sent.density, method.nbytes))
            say(f"float32 values, gain {gain:g}, round {round_}, trainer {trainer}: {100 * sent.density:.2f} %")
        method.step()
    return found


class _Written(Values):
    """Float32 values, written in several ways."""

    nbytes: dict[str, int]

    def _add(self, gradient: torch.Tensor) -> None:
        super()._add(gradient)
        values: Floats = gradient.numpy()
        index = np.flatnonzero(values)
        gaps = np.diff(index, prepend=-1).astype(np.uint32)
        planes = np.concatenate([gaps.view(np.uint32), values[index].view(np.uint32)]).view(np.uint8)
        shuffled = [np.ascontiguousarray(part.reshape(-1, 4).T) for part in np.split(planes, 2)] if len(index) else []
        packed = sum(len(zstandard.ZstdCompressor(level=1).compress(part)) for part in shuffled)
        self.nbytes = {
            "12 bytes an entry": 12 * len(index),
            "index32 + float32": 8 * len(index),
            "gaps + float32, shuffled, zstd-1": packed,
        }


def _contributed(method: Levels | Values, rounds: Rounds, round_: int) -> Iterator[tuple[int, Sent]]:
    theta = method.weights().copy()
    for trainer in range(rounds.trainers):
        yield trainer, method.contribute(trainer, theta - rounds.pseudo_gradient(round_, trainer))


def _coded_sizes(coded: bytes) -> list[int]:
    """Return the bytes of each coded group of a contribution."""
    from pulse_registry.format.patch_head import read_container
    from pulse_registry.format.safetensors import parse_head
    from pulse_schemas.heads import ContributionHead

    header = parse_head(coded, len(coded))
    size = header.nbytes + header.tensors["directory"].stop
    _, entries = read_container("a contribution", coded[:size], len(coded), ContributionHead)
    sizes: list[int] = entries.sizes.tolist()
    return sizes


def _entropy(method: Levels) -> float:
    """Return the bits of an ideal code for the newest contribution, given the class of each cell of the BF16 weights.

    The empirical entropy, class by class, of whether a cell is sent and, where it is, of its level.
    """
    population, sent = np.zeros(256, np.int64), np.zeros(256, np.int64)
    pairs: list[npt.NDArray[np.int64]] = []
    parts = {group.number: part for group, part in method.parts}
    for group in method.geometry.groups:
        classes = (method.outer.version_cells(group) >> 7) & 0xFF
        population += np.bincount(classes, minlength=256)
        part = parts.get(group.number)
        if isinstance(part, GroupLevels):
            found = classes[part.index].astype(np.int64)
            sent += np.bincount(found, minlength=256)
            pairs.append((found << 16) + (part.levels.astype(np.int64) + 32768))
    if not pairs:
        return 0.0
    _, counts = np.unique(np.concatenate(pairs), return_counts=True)
    bits = _log_sum(sent, population) + _log_sum(population - sent, population)
    bits += float((counts * -np.log2(counts)).sum() + (sent * np.log2(np.maximum(sent, 1))).sum())
    return bits


def _log_sum(counts: npt.NDArray[np.int64], of: npt.NDArray[np.int64]) -> float:
    """Return the sum of counts * log2(of / counts)."""
    return float((counts * (np.log2(np.maximum(of, 1)) - np.log2(np.maximum(counts, 1)))).sum())


def rows(
    cells: int, told: dict[float, list[Told]], patches: dict[float, list[float]], beside: dict[float, list[Others]]
) -> list[Row]:
    """Return the figures, of the rounds after the first, the mean of all trainers."""
    found = []
    for gain, every in told.items():
        after = [one for one in every if one.round > 1]
        trainers = len({one.trainer for one in after})
        nbytes = statistics.fmean(one.nbytes for one in after)
        bits = statistics.fmean(one.bits for one in after)
        density = statistics.fmean(one.density for one in after)
        entropy = max((one.bits - 8 * one.head / one.entries) / one.entropy for one in after)
        first = statistics.fmean(4 * cells / one.nbytes for one in every if one.round == 1)
        what, ring = f"gain {gain:g}", 8 * cells * (trainers - 1) / trainers
        limit: dict[str, Any] = {"sense": "at most", "limit": BITS_LIMIT} if gain == 1 else {}
        least = PAYLOAD_LIMIT.get(gain)
        payload: dict[str, Any] = {} if least is None else {"sense": "at least", "limit": least}
        found += [
            Row(f"{gain:g}.density", f"{what}: cells sent", 100 * density, "%"),
            Row(
                f"{gain:g}.payload",
                f"{what}: bytes sent, less than dense float32",
                4 * cells / nbytes,
                "x",
                **payload,
            ),
            Row(f"{gain:g}.payload.first", f"{what}: the same of round 1 alone", first, "x"),
            Row(
                f"{gain:g}.link",
                f"{what}: bytes sent and fetched, less than a ring all-reduce of dense float32",
                2 * ring / (nbytes * trainers),
                "x",
            ),
            Row(
                f"{gain:g}.down",
                f"{what}: bytes fetched, less than such a ring's way in",
                ring / (nbytes * (trainers - 1)),
                "x",
            ),
            Row(f"{gain:g}.bits", f"{what}: bits an entry, heads included", bits, "bits", **limit),
            Row(
                f"{gain:g}.entropy",
                f"{what}: coded groups, of the entropy given the class, at most",
                entropy,
                "x",
                "at most",
                ENTROPY_LIMIT,
            ),
            Row(
                f"{gain:g}.patch",
                f"{what}: BF16 cells that a round's step changes",
                100 * statistics.fmean(patches[gain][1:]),
                "%",
            ),
        ]
    for gain, ways in beside.items():
        after_first = [one for one in ways if one.round > 1]
        density = statistics.fmean(one.density for one in after_first)
        found.append(Row(f"{gain:g}.values.density", f"gain {gain:g}: float32 values: cells sent", 100 * density, "%"))
        for way in after_first[0].nbytes:
            nbytes = statistics.fmean(one.nbytes[way] for one in after_first)
            what = f"gain {gain:g}: float32 values, {way}: less than dense float32"
            found.append(Row(f"{gain:g}.{way}", what, 4 * cells / nbytes, "x"))
    return found


def document(
    rounds: Rounds, recipe: dict[str, Any], gains: Sequence[float] = GAINS, say: Say = print
) -> dict[str, Any]:
    """Replay in all ways; return the result document."""
    cells = len(rounds.start)
    told, patches, beside = {}, {}, dict[float, list[Others]]()
    for gain in gains:
        told[gain], patches[gain] = levels(rounds, gain, say)
    beside[1.0] = others(rounds, 1.0, say)  # the rule of those who send them
    return {
        "kind": "outer-bytes",
        "title": f"{TITLE}: {cells:,} cells of it",
        "machine": machine(),
        "versions": versions(),
        "settings": {"cells": cells, "trainers": rounds.trainers, "rounds": rounds.rounds, "recording": recipe},
        "rows": [row.document() for row in rows(cells, told, patches, beside)],
        "levels": {f"{gain:g}": [asdict(one) for one in every] for gain, every in told.items()},
        "patches": {f"{gain:g}": every for gain, every in patches.items()},
        "values": {f"{gain:g}": [asdict(one) for one in every] for gain, every in beside.items()},
    }


def run(
    folder: Annotated[Path, typer.Argument(help="Of recorded rounds; made by ``outer record`` if it is not there.")],
    stretches: Annotated[
        int | None, typer.Option(help="Of 4,096 cells, evenly spread, that are looked at; default: the whole model.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = OUT,
) -> None:
    """Count the bytes of recorded rounds; write a result file."""
    from benchmarks.outer.recording import Recipe, Recorded, record

    console = Console()
    recorded = Recorded.read(folder) if (folder / "rounds.json").exists() else record(Recipe(), folder, console.print)
    recipe = asdict(recorded.recipe)
    rounds: Rounds = recorded if stretches is None else cut(recorded, recipe, stretches, 4096)
    found = document(rounds, recipe, say=console.print)
    finish(console, found, out / "outer" / "bytes.json")
