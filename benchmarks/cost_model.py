"""``python -m benchmarks.cost_model``: the cost model of sharded pushes, piece by piece, against what is measured here.

The formulas are those of docs/how-to/estimate-costs.md. Bytes and requests are those of a push by ranks of one process,
of groups that are small enough for several parts. Processor's times are predicted for one size by those of a smaller
one, and measured there.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.planning import Clock, first_push, made_layout, model_of, shapes
from benchmarks.results import OUT, Row, machine, versions, write_result
from pulse_registry import Registry, Slice
from pulse_registry.format.patch_coding import code_change
from pulse_registry.format.patch_parts import PART_GROUPS
from pulse_registry.options import Options
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.peers.peers import Bytes
from pulse_registry.push.changed_columns import ChangedColumns
from pulse_registry.push.options import PushOptions
from pulse_registry.push.shadow import first_host_shadow
from pulse_registry.store import FileStore
from pulse_registry.testing import CountingStore
from pulse_registry.timeline import Timeline
from pulse_registry.weights.backend import backend_of
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from pulse_registry.weights.slice_map import SliceMap
from tests.support.groups import small_groups
from tests.support.ranks import MortalPeers

TITLE: Final = "The cost model of sharded pushes"
TENSORS, RECORD_BYTES, WITHIN = 8, 900, 0.25
PLANNED: Final = 31, 61
"""Layers of the models that are planned."""
app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicts what a push costs.

    Attributes:
        cells: of the model, two bytes each.
        ranks: that hold as much of each tensor.
        share: of the cells that a push changes, at places that have nothing to do with each other.
        group_bytes: of a group.
    """

    cells: int
    ranks: int
    share: float
    group_bytes: int

    @property
    def groups(self) -> int:
        """How many groups, and so rows of a head."""
        return -(-2 * self.cells // self.group_bytes)

    @property
    def parts(self) -> int:
        """Objects in which a patch's groups lie."""
        return -(-self.groups // PART_GROUPS)

    @property
    def exchange(self) -> float:
        """Bytes that a rank sends to others: eight for each change whose home is another one."""
        return 8 * self.share * (self.ranks - 1) / self.ranks * self.cells / self.ranks

    @property
    def patch(self) -> float:
        """Bytes of all parts: at random places, log2(e / share) bits a change, and none for steps of one size."""
        return math.log2(math.e / self.share) / 8 * self.share * self.cells + 33 * self.groups

    @property
    def head(self) -> float:
        """Bytes of a patch's head."""
        return 80 * self.groups

    @property
    def keyframe(self) -> float:
        """Bytes of the first keyframe that a rank stores."""
        return 2 * self.cells / self.ranks


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of the model: what it says, and what was measured."""

    name: str
    formula: str
    predicted: float
    measured: float
    unit: str

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted

    def texts(self) -> tuple[str, ...]:
        """Return it as a row of a table."""
        within = "yes" if abs(self.ratio - 1) <= WITHIN else "no"
        figures = f"{self.predicted:,.4g} {self.unit}", f"{self.measured:,.4g}", f"{self.ratio:.3f}"
        return self.name, self.formula, *figures, within

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "name": self.name,
            "formula": self.formula,
            "predicted": self.predicted,
            "measured": self.measured,
            "unit": self.unit,
            "ratio": round(self.ratio, 3),
        }


class CountingPeers(MortalPeers):
    """A rank's end of a group that counts the bytes of changes that leave it."""

    nbytes = 0

    def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
        """Exchange, and count."""
        if what == "changes":
            self.nbytes += sum(memoryview(part).nbytes for to, part in enumerate(parts) if to != self.rank)
        return super().exchange(parts, what)


def push_pieces(model: CostModel, folder: Path, seed: int) -> list[Piece]:
    """Push by ranks of this process, and return the bytes and requests of one patch, and of the first keyframe."""
    columns = 256
    rows = model.cells // TENSORS // columns
    names, each = [f"model.layers.{n}.mlp.gate_proj.weight" for n in range(TENSORS)], rows // model.ranks
    sent: list[int] = [0] * model.ranks
    puts: list[list[str]] = [[] for _ in range(model.ranks)]
    calls: list[int] = [0] * model.ranks

    def life(peers: LocalPeers) -> None:
        rng, store = np.random.default_rng([seed, peers.rank]), CountingStore(FileStore(folder))
        shards = {name: rng.integers(0, 2**14, (each, columns), np.uint16) for name in names}
        held = {n: Slice(one, of=(rows, columns), at=(peers.rank * each, 0)) for n, one in shards.items()}
        push = PushOptions(dtype="keep", coder="gap", keyframe_share=1e9)
        counting = CountingPeers(peers)
        with Registry(store, "run", Options(push=push, peers=counting)) as registry:
            registry.push(0, held)
            store.reset()
            counting.nbytes = 0
            for one in shards.values():
                flat = one.reshape(-1)
                flat[some(len(flat), model.share, rng)] += 1
            registry.push(1, held)
            sent[peers.rank] = counting.nbytes
            puts[peers.rank] = [key for verb, key in store.ledger if verb == "put"]
            calls[peers.rank] = sum(store.calls.values())

    for done in run_ranks(life, LocalGroup(model.ranks)):
        done.result()
    size = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    new = [key for keys in puts for key in keys]
    heads = [key for key in new if "patch-head" in key]
    records = [key for key in new if "/log/" in key]
    parts = [key for key in new if "/objects/patch/" in key and key not in heads]
    layout = made_layout(dict.fromkeys(names, (rows, columns)))
    shards = [nbytes for key, nbytes in size.items() if "keyframe" in key and key.endswith("safetensors")]
    of_rank = [sum(key in parts for key in keys) for keys in puts]
    said = sum(42 + len(t.name) + sum(len(str(n)) + 1 for n in t.shape) for t in layout.tensors)
    return [
        Piece("exchange a rank", "8 s a C / N", model.exchange, statistics.mean(sent), "bytes"),
        Piece("patch", "log2(e / s) s C / 8 + 33 a group", model.patch, sum(size[key] for key in parts), "bytes"),
        Piece("head", "80 a group", model.head, sum(size[key] for key in heads), "bytes"),
        Piece("record", "900", RECORD_BYTES, sum(size[key] for key in records), "bytes"),
        Piece("layout", "42 a tensor, its name and shape", said, len(layout.canonical()), "bytes"),
        Piece("parts", "groups / 64", model.parts, len(parts), "objects"),
        Piece("parts of a rank, at most", "parts / N", -(-model.parts // model.ranks), max(of_rank), "objects"),
        Piece("objects of a push", "parts + 2", model.parts + 2, len(parts) + len(heads) + len(records), "objects"),
        Piece("first keyframe, a rank", "2 C / N", model.keyframe, sum(shards) / model.ranks, "bytes"),
    ]


def some(cells: int, share: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the indices of a share of some cells, at random."""
    return np.unique(rng.integers(0, cells, round(cells * share)))


def processor_pieces(cells: int, share: float, experts: int, repeats: int, seed: int) -> list[Piece]:
    """Return processor's times of four times a size, as predicted by those of the size; both in turns."""
    backend_of("auto").warm_up(2)
    sizes = cells, 4 * cells
    with RankWork(sizes[0], share, seed) as small, RankWork(sizes[1], share, seed) as large:
        turns = [(small.step(), large.step()) for _ in range(repeats + 1)][1:]
    few, many = shapes(PLANNED[0], experts), shapes(PLANNED[1], experts)
    plans = [(planning_seconds(few), planning_seconds(many)) for _ in range(max(1, repeats // 3))]
    names = ("diff", "by cells"), ("changes, by groups and packed", "by changes"), ("coding", "by changes")
    times = [[(one[k], other[k]) for one, other in turns] for k in range(len(names))]
    return [
        *(_scaled(*name, pairs, sizes[1] / sizes[0]) for name, pairs in zip(names, times, strict=True)),
        _scaled("plan of the first push", "by tensors", plans, len(many) / len(few)),
    ]


def _scaled(name: str, formula: str, pairs: Sequence[tuple[float, float]], factor: float) -> Piece:
    """Return a time as that of a smaller size predicts it: the least of all repeats, to which a busy machine adds."""
    small, large = (min(column) for column in zip(*pairs, strict=True))
    return Piece(name, formula, factor * small, large, "s")


class RankWork:
    """What a rank does with the cells that it speaks for, in one thread. A context manager."""

    def __init__(self, cells: int, share: float, seed: int) -> None:
        """Make so many cells, of which each step changes a share, and a shadow of them."""
        self._rng, self._share, self._backend = np.random.default_rng(seed), share, backend_of("auto")
        self._live = self._rng.integers(0, 2**14, cells, np.uint16)
        self._views = read_model({"w": self._live})
        geometry = Geometry(layout_of(self._views, "keep"))
        self._slices = SliceMap.of(geometry, self._views)
        self._pool = ThreadPoolExecutor(1)
        self._shadow = first_host_shadow(geometry, self._views, self._backend, self._pool, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def step(self) -> tuple[float, float, float]:
        """Change cells; return what diffing, sending and coding them take of the processor."""
        backend, version = self._backend, self._shadow.version + 1
        self._live[some(len(self._live), self._share, self._rng)] += 1
        times = [time.process_time()]
        self._shadow.advance(self._views, None, Timeline())
        times.append(time.process_time())
        changes = self._shadow.listed(version).groups
        ChangedColumns.packed([ChangedColumns.of(self._slices, change, backend)[0] for change in changes])
        times.append(time.process_time())
        for change in changes:
            code_change(backend, change, "gap", None, Timeline())
        times.append(time.process_time())
        self._shadow.settle(version)
        diff, send, code = np.diff(times).tolist()
        return diff, send, code


def planning_seconds(every: Mapping[str, tuple[int, ...]]) -> float:
    """Return what the first push of a rank with rows of all tensors takes of the processor."""
    tensors, clock = dict(every), Clock()
    canonical = made_layout(tensors).canonical()
    first_push(clock, model_of(tensors, "rows", 1, 512), canonical, 1, 512, np.random.default_rng(0))
    return sum(clock.seconds.values())


@app.command()
def cost_model(
    cells: Annotated[int, typer.Option(help="Of the model.", min=1 << 16)] = 64 << 20,
    group_kib: Annotated[int, typer.Option(help="Size of a group; a real one has 16,384.", min=1)] = 512,
    ranks: Annotated[int, typer.Option(help="That hold the model.", min=2)] = 4,
    share: Annotated[float, typer.Option(help="Of the cells that change.", min=1e-4, max=0.1)] = 0.0043,
    experts: Annotated[int, typer.Option(help="Of a layer of the model that is planned.", min=1)] = 384,
    repeats: Annotated[int, typer.Option(help="Of each time.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Of cells and changes.")] = 0,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "cost_model.json",
) -> None:
    """Compare each piece of the model with what is measured; write a result file."""
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder, small_groups(group_kib << 10):
        pieces = push_pieces(CostModel(cells, ranks, share, group_kib << 10), Path(folder), seed)
    pieces += processor_pieces(cells, share, experts, repeats, seed)
    console, table = Console(), Table(title=TITLE)
    for name in ("piece", "formula", "predicted", "measured", "ratio", "within 25 %"):
        table.add_column(name)
    for piece in pieces:
        table.add_row(*piece.texts())
    console.print(table)
    settings = {"cells": cells, "group_kib": group_kib, "ranks": ranks, "share": share, "repeats": repeats}
    document = {"kind": "cost_model", "title": TITLE, "seed": seed, "machine": machine(), "versions": versions()}
    found = [piece.document() for piece in pieces]
    rows = [
        Row(str(at), f"{one['name']}: measured, against `{one['formula']}`", one["ratio"], "x")
        for at, one in enumerate(found)
    ]
    write_result(out, document | {"settings": settings, "rows": [row.document() for row in rows], "pieces": found})
    console.print(f"written to {out}")


if __name__ == "__main__":
    app()
