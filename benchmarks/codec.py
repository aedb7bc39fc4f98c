"""The two coders beside each other, one thread: what ``class`` costs and saves, for the choice that ``auto`` makes.

See docs/adr/0004-coder-auto.md. ``auto`` codes a group with ``gap`` first; where it then tries ``class`` as well, the
trainer pays the whole of class's coding on top and every worker pays the difference of the decodings.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.bandwidth import geometry_of, weights_of
from benchmarks.states import Cells, Live, States
from pulse_kernels import Backend, CoderName, decode_group, encode_group
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.weights.arrays import Weights

_CODERS: tuple[CoderName, ...] = ("gap", "class")
GIGABIT = 0.125
"""Bytes a nanosecond on the link that ``auto`` weighs time against."""


def measure_coders(states: States, backend: Backend, repeats: int, step: int = 0) -> dict[str, Any]:
    """Code and decode one step, group after group in one thread.

    Returns:
        Nanoseconds a cell of the model (not a changed cell), bytes, and what follows from them: ``class_ns`` is what
        ``class_pays`` weighs, ``class_saves`` the share of gap's bytes, ``pays_below_mbit`` the link on which class
        and gap take the same time, ``pays_above_bits`` how many bits of gap a cell of the model make it pay at
        1 Gbit/s.
    """
    geometry = geometry_of(states)
    old, new = Live(states), Live(states)
    old.go(step)
    new.go(step + 1)
    base, live = weights_of(geometry, states, old.cells), weights_of(geometry, states, new.cells)
    changes = [SparseUpdate(g, *backend.diff(live.copy_of(g), base.copy_of(g))) for g in geometry.groups]
    changes = [change for change in changes if len(change.index)]
    spent: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for repeat in range(repeats + 1):
        totals: dict[str, float] = dict.fromkeys(("gap_encode", "gap_decode", "class_encode", "class_decode"), 0.0)
        sizes = {"gap": 0, "class": 0}
        for change in changes:
            for coder in _CODERS:
                size, encoding, decoding = _code(backend, coder, base, change)
                sizes[coder] += size
                totals[f"{coder}_encode"] += encoding
                totals[f"{coder}_decode"] += decoding
        if repeat:
            for key, total in totals.items():
                spent.setdefault(key, []).append(total)
    per_cell = {key: statistics.median(values) * 1e9 / states.cells for key, values in spent.items()}
    return {**_weigh(per_cell, sizes, states.cells), "changed_share": round(states.changed(step) / states.cells, 6)}


def _code(backend: Backend, coder: CoderName, base: Weights, change: SparseUpdate) -> tuple[int, float, float]:
    """Return the bytes of a coded group, and the seconds that coding and decoding it took."""
    group = change.group

    def cells() -> list[Cells] | None:
        return base.spans(group) if coder == "class" else None

    began = time.perf_counter()
    data = encode_group(backend, coder, group.cell_type, group.cells, change.index, change.old, change.new, cells())
    encoded = time.perf_counter()
    decode_group(backend, coder, group.cell_type, group.cells, len(change.index), data, cells())
    return len(data), encoded - began, time.perf_counter() - encoded


def _weigh(per_cell: dict[str, float], sizes: dict[str, int], cells: int) -> dict[str, Any]:
    class_ns = per_cell["class_encode"] + per_cell["class_decode"] - per_cell["gap_decode"]
    instead_ns = class_ns - per_cell["gap_encode"]
    saved = sizes["gap"] - sizes["class"]
    share = saved / sizes["gap"]
    return {
        "ns_per_cell": {key: round(value, 4) for key, value in per_cell.items()},
        "bytes": sizes,
        "class_ns": round(class_ns, 3),
        "class_instead_ns": round(instead_ns, 3),
        "class_saves": round(share, 4),
        "pays_below_mbit": round(saved / (class_ns * cells) * 8e3, 2),
        "pays_above_bits": round(8 * class_ns * GIGABIT / share, 3) if share > 0 else None,
    }
