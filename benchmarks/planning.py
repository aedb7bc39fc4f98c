"""``python -m benchmarks planning``: what a rank of a sharded trillion does besides passes over its cells.

The layout is that of a mixture of experts: 61 layers of 384 experts. No cell is there: each tensor is one zero of its
own, seen in many places. A rank runs in a process of its own, and what the others would send it is made up. Times are
the processor's; memory is what the process grows by, less what the made-up model takes.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from rich.console import Console

from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from pulse_registry import Slice
from pulse_registry.format.directory import _ROW, Column, Directory
from pulse_registry.format.patch_coding import PatchFile
from pulse_registry.format.patch_parts import PART_GROUPS
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.peers.shuffle import _counted
from pulse_registry.push import holdings
from pulse_registry.push.changed_columns import ChangedColumns
from pulse_registry.push.exchange import _by_rank, _take
from pulse_registry.push.homes import dealt, of_parts
from pulse_registry.weights.backend import backend_of
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.model import layout_of, read_model
from pulse_schemas import Layout, Tensor

TITLE = "A rank's work besides passes over cells"
WIDE, VOCABULARY = 7168, 163_840
CHANGED = 0.0043
SECONDS_LIMIT, MEMORY_LIMIT, GEOMETRY_LIMIT, PARSE_LIMIT = 5.0, 300.0, 0.5, 1.5
WAYS = ("rows", "experts")
Shapes = dict[str, tuple[int, ...]]
T = TypeVar("T")


def shapes(layers: int, experts: int) -> Shapes:
    """Return the tensors of a mixture of experts, the first layer of which is dense."""
    found: Shapes = {
        "model.embed_tokens.weight": (VOCABULARY, WIDE),
        "lm_head.weight": (VOCABULARY, WIDE),
        "model.norm.weight": (WIDE,),
    }
    attention: Shapes = {
        "self_attn.q_a_proj": (1536, WIDE),
        "self_attn.q_b_proj": (12_288, 1536),
        "self_attn.kv_a_proj_with_mqa": (576, WIDE),
        "self_attn.kv_b_proj": (16_384, 512),
        "self_attn.o_proj": (WIDE, 8192),
        "input_layernorm": (WIDE,),
        "post_attention_layernorm": (WIDE,),
        "self_attn.q_a_layernorm": (1536,),
        "self_attn.kv_a_layernorm": (512,),
    }
    for layer in range(layers):
        blocks = {"mlp": 18_432} if layer == 0 else {"mlp.shared_experts": 2048}
        blocks |= {f"mlp.experts.{expert}": 2048 for expert in range(experts if layer else 0)}
        of_layer = attention | ({"mlp.gate": (experts, WIDE)} if layer else {})
        for block, inner in blocks.items():
            of_layer |= {f"{block}.gate_proj": (inner, WIDE), f"{block}.up_proj": (inner, WIDE)}
            of_layer |= {f"{block}.down_proj": (WIDE, inner)}
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found


def model_of(every: Shapes, way: str, rank: int, ranks: int) -> dict[str, Any]:
    """Return what a rank holds: rows of each tensor; or whole experts, and rows of the others."""
    zeros, model = np.zeros(len(every), np.uint16), {}
    expert = 0
    for (name, shape), zero in zip(every.items(), np.split(zeros, len(zeros)), strict=True):
        if way == "experts" and ".mlp.experts." in name:
            if expert // 3 % ranks == rank:
                model[name] = np.broadcast_to(zero, shape)
            expert += 1
            continue
        share = -(-shape[0] // ranks)  # as torch cuts a dimension
        first, stop = min(shape[0], rank * share), min(shape[0], (rank + 1) * share)
        held = np.broadcast_to(zero, (stop - first, *shape[1:]))
        model[name] = Slice(held, of=shape, at=(first, *(0 for _ in shape[1:])))
    return model


@dataclass(slots=True)
class Clock:
    """Processor's seconds, by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    def time(self, what: str, work: Callable[[], T]) -> T:
        """Do some work, and note what it took."""
        began = time.process_time()
        found = work()
        self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - began
        return found


def peak_mb() -> float:
    """Return the most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mb() -> float:
    """Return the memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def made_layout(every: Shapes) -> Layout:
    """Return the layout of all ranks."""
    tensors = sorted((Tensor(name=name, dtype="U16", shape=shape) for name, shape in every.items()), key=_name)
    return Layout(tensors=tuple(tensors))


def _name(tensor: Tensor) -> str:
    return tensor.name


@dataclass(frozen=True, slots=True)
class Planned:
    """What a rank keeps of its first push."""

    geometry: Geometry
    spoken: holdings.Spoken
    homes: Column


def rank_work(every: Shapes, canonical: bytes, way: str, rank: int, ranks: int, changes: int) -> dict[str, Any]:
    """Do what one rank does from its first push on, and return the seconds of each thing, and the memory."""
    clock, rng = Clock(), np.random.default_rng(rank)
    backend_of("auto").warm_up(2)
    before = resident_mb()
    model = model_of(every, way, rank, ranks)
    began = resident_mb()
    plan = first_push(clock, model, canonical, rank, ranks, rng)
    first, slices = sum(clock.seconds.values()), plan.spoken.slices
    local = [changed(group, changes, rng) for group in slices.local.groups]
    next_push(clock, model, plan, local, rank, ranks)
    return {
        "rank": rank,
        "way": way,
        "seconds": clock.seconds,
        "first": first,
        "push": sum(clock.seconds.values()) - first,
        "memory_mb": peak_mb() - began,
        "model_mb": began - before,
        "tensors": len(slices.slices),
        "groups": len(slices.groups),
        "changed": sum(len(one.index) for one in local),
    }


def first_push(
    clock: Clock, model: Mapping[str, Any], canonical: bytes, rank: int, ranks: int, rng: np.random.Generator
) -> Planned:
    """Plan what a rank speaks for, as its first push does; ``canonical`` is the layout that comes back from all."""
    views = clock.time("read the model", lambda: read_model(model))
    clock.time("fingerprint", lambda: holdings.fingerprint(views))
    mine = clock.time("own layout", lambda: layout_of(views, "keep"))
    known = clock.time("layout of all", lambda: canonical == mine.canonical())
    layout = mine if known else clock.time("layout of all", lambda: holdings._parsed(canonical, 1))
    geometry = clock.time("layout of all", lambda: Geometry(layout))
    clock.time("layout of all", lambda: geometry.id)
    found = clock.time("boxes, hashed", lambda: holdings._holdings(geometry, views))
    hashes = clock.time("boxes, hashed", lambda: [holdings.hash_of(holding) for holding in found])
    asked = rng.integers(0, 2**63, (len(hashes), 2)).astype(np.uint64)  # as many as are sent here, on average
    clock.time("boxes of the others", lambda: _counted(rng.integers(0, ranks, len(asked)), asked))
    spoken = clock.time("slices laid out", lambda: holdings._spoken(geometry, found, [(0, 1)] * len(found)))
    parts = clock.time("homes", lambda: of_parts(spoken.slices))
    of_part = np.arange(len(parts)) % ranks
    if rank == 0:
        of_part = clock.time("homes", lambda: dealt([parts.tobytes()] * ranks))
    homes = clock.time("homes", lambda: np.repeat(of_part, PART_GROUPS)[: len(geometry.groups)])
    return Planned(geometry, spoken, homes)


def next_push(
    clock: Clock, model: Mapping[str, Any], plan: Planned, local: Sequence[SparseUpdate], rank: int, ranks: int
) -> None:
    """Do what each later push does, with made-up changes; at rank 0 a head of all groups, too."""
    geometry, slices, backend, homes = plan.geometry, plan.spoken.slices, backend_of("auto"), plan.homes
    views = clock.time("each push: read the model", lambda: read_model(model))
    clock.time("each push: fingerprint", lambda: holdings.fingerprint(views))
    clock.time("each push: live cells", lambda: plan.spoken.live(views))
    made = clock.time("each push: by groups of all", lambda: [ChangedColumns.of(slices, one, backend) for one in local])
    mine = [columns for columns, _ in made]
    sent = clock.time("each push: packed", lambda: _by_rank(mine, homes, ranks, range(len(geometry.groups))))
    came = from_all(geometry, mine, sent, homes, ranks)
    every = range(len(geometry.groups)), np.ones(len(geometry.groups), bool)
    clock.time("each push: put together", lambda: _take(geometry, came, [], every))
    if rank == 0:
        rows = np.zeros(len(geometry.groups), _ROW)
        rows["group"], rows["changed"], rows["size"] = np.arange(len(rows)), 1, 1
        pieces = [rows[first::ranks].tobytes() for first in range(ranks)]
        clock.time(
            "each push: head",
            lambda: PatchFile.of_directory(geometry, 0, 1, Directory.joined("head", pieces)).ref("head"),
        )


def from_all(
    geometry: Geometry, mine: Sequence[ChangedColumns], sent: Sequence[bytes], homes: Column, ranks: int
) -> list[memoryview]:
    """Return what comes to one rank, if others send what this one does, of other cells, and as much as it sends."""
    to = max(range(ranks), key=lambda rank: len(sent[rank]))
    parts = [part for one in mine for home, part in one.by_home(homes, 0, len(geometry.groups)) if home == to]
    came = []
    for rank in range(round(sum(map(len, sent)) / len(sent[to]))):
        moved = []
        for place, part in enumerate(parts):  # two that lie beside each other may have cells of one group
            index = (_counted_up(part.counts) * 2 + place % 2) * ranks + rank
            moved.append(replace(part, index=index.astype(np.uint32)))
        came.append(memoryview(ChangedColumns.packed(moved)))
    return came


def _counted_up(counts: Column) -> Column:
    """Return 0, 1, 2 ... for each count, end to end."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def changed(group: Group, changes: int, rng: np.random.Generator) -> SparseUpdate:
    """Return made-up changes of a group."""
    index = np.unique(rng.integers(0, group.cells, min(changes, group.cells))).astype(np.uint32)
    old = np.zeros(len(index), group.cell_type.dtype)
    return SparseUpdate(group, index, old, old + np.uint16(1))


def measure(layers: int, experts: int, ranks: int, chosen: Sequence[int], changes: int) -> dict[str, Any]:
    """Plan some ranks one after another, each in a process of its own; return the rows, and what is behind them."""
    every, clock = shapes(layers, experts), Clock()
    layout = made_layout(every)
    canonical = layout.canonical()
    geometry = clock.time("geometry", lambda: Geometry(layout))
    groups = len(geometry.groups)
    clock.time("parse", lambda: Layout.parse(canonical).id)
    found = []
    context = multiprocessing.get_context("spawn")
    for way in WAYS:
        for rank in chosen:
            with context.Pool(1) as pool:
                found.append(pool.apply(rank_work, (every, canonical, way, rank, ranks, changes)))
    rows = [
        Row("geometry", "Geometry of the layout", clock.seconds["geometry"], "s", "at most", GEOMETRY_LIMIT),
        Row("parse", "the layout, parsed, and its id", clock.seconds["parse"], "s", "at most", PARSE_LIMIT),
    ]
    for way in WAYS:
        of_way = [one for one in found if one["way"] == way]
        for key, what, unit, limit in (
            ("first", "at the first push, the most of a rank", "s", SECONDS_LIMIT),
            ("push", "at each push, the most of a rank", "s", None),
            ("memory_mb", "memory, the most of a rank", "MB", MEMORY_LIMIT),
        ):
            sense: Any = None if limit is None else "at most"
            rows.append(Row(f"{way}.{key}", f"{way}: {what}", max(one[key] for one in of_way), unit, sense, limit))
    return {
        "layout": {"tensors": len(every), "groups": groups, "cells": geometry.cells, "json_bytes": len(canonical)},
        "rows": [row.document() for row in rows],
        "ranks": found,
    }


def run(
    layers: Annotated[int, typer.Option(help="Of the model.", min=1)] = 61,
    experts: Annotated[int, typer.Option(help="Of a layer.", min=1)] = 384,
    ranks: Annotated[int, typer.Option(help="That hold the model.", min=2)] = 512,
    planned: Annotated[int, typer.Option(help="How many of them to plan, rank 0 first.", min=1)] = 4,
    changes: Annotated[int, typer.Option(help="Of a group of a rank's cells.", min=1)] = 360,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "planning.json",
) -> None:
    """Measure what one rank of many does besides passes over its cells; write a result file."""
    console = Console()
    chosen = sorted({number * ranks // min(planned, ranks) for number in range(min(planned, ranks))})
    measured = measure(layers, experts, ranks, chosen, changes)
    console.print(rows_table(TITLE, map(Row.parse, measured["rows"])))
    settings = {"layers": layers, "experts": experts, "ranks": ranks, "planned": chosen, "changes": changes}
    title = f"{TITLE}: {measured['layout']['tensors']:,} tensors, {ranks} ranks"
    document = {"kind": "planning", "title": title, "seed": 0, "machine": machine(), "versions": versions()}
    write_result(out, document | {"settings": settings} | measured)
    console.print(f"written to {out}")
