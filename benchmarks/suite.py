"""All benchmarks on one run of states: measure, then lay the figures beside their limits."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bandwidth import measure_bandwidth
from benchmarks.codec import measure_coders
from benchmarks.memory import STEPS, measure_memory
from benchmarks.push_pull import CODERS, Times, measure_push_pull, warm_up
from benchmarks.results import Row, machine, versions
from benchmarks.sizes import RAW_BITS
from benchmarks.states import States, save_states
from benchmarks.timing import milliseconds, ratio
from pulse_kernels import get_backend

MIN_REPEATS = 5
BITS_LIMIT = {"gap": 14.2, "class": 9.5}
MEMORY_LIMIT = {"push": 0.25, "pull": 0.1}
Say = Callable[[str], None]


def run_suite(states: States, threads: int, repeats: int, *, memory: bool = True, say: Say = print) -> dict[str, Any]:
    """Measure everything; return the result document.

    Args:
        states: to run on.
        threads: of the measurements that are not the library's (it takes one a core).
        repeats: of each, at least ``MIN_REPEATS``.
        memory: whether to start the processes that measure memory.
        say: told what is being measured.
    """
    if repeats < MIN_REPEATS:
        raise ValueError(f"{repeats} repeats are too few for a median; take {MIN_REPEATS} or more")
    backend = get_backend()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder:
        root = Path(folder)
        say("loading code")
        warm_up(root / "warm")
        say("bandwidth")
        bandwidth, touched = measure_bandwidth(states, backend, threads, repeats)
        say("coders, one thread")
        coders = measure_coders(states, backend, repeats)
        say("pushes and pulls")
        times, sizes = measure_push_pull(states, root / "runs", threads, repeats)
        extra: dict[str, dict[str, Any]] = {}
        if memory:
            say("memory")
            (root / "states").mkdir()
            save_states(states, root / "states", min(STEPS, len(states.steps)) + 1)
            extra = measure_memory(states, root / "states", root / "runs", CODERS)
    rows = [
        *bandwidth_rows(bandwidth, touched),
        *time_rows(times),
        *size_rows(sizes),
        *memory_rows(extra),
    ]
    return {
        "format": 1,
        "states": {
            "kind": states.kind,
            "title": states.title,
            "seed": states.seed,
            "tensors": len(states.tensors),
            "cells": states.cells,
            "bytes": states.nbytes,
            "steps": len(states.steps),
        },
        "machine": {**machine(), "threads": threads, "load_before": round(load, 2)},
        "versions": versions(),
        "backend": backend.name,
        "rows": [row.document() for row in rows],
        "bandwidth": {name: _bandwidth(values, touched[name]) for name, values in bandwidth.items()},
        "times": _times(times),
        "coders": coders,
        "sizes": sizes,
        "memory": extra,
    }


def bandwidth_rows(bandwidth: dict[str, list[float]], touched: dict[str, int]) -> list[Row]:
    """Return diff and digest against copying and reading."""

    def against(name: str, other: str) -> float:
        return ratio(bandwidth[other], bandwidth[name]) * touched[name] / touched[other]

    copy = statistics.median(bandwidth["copy"])
    rows = [
        Row("copy", "NumPy copy, read + written", touched["copy"] / copy / 1e9, "GB/s"),
        Row("diff", "diff, against copy bandwidth", against("diff", "copy"), "x", "at least", 0.6),
    ]
    if "diff_f32" in bandwidth:
        what = "diff of FP32 masters against BF16, against copy bandwidth"
        rows.append(Row("diff_f32", what, against("diff_f32", "copy"), "x"))
    rows.append(Row("digest", "state digest, full pass, against read bandwidth", against("digest", "read"), "x"))
    return rows


def time_rows(times: Times) -> list[Row]:
    """Return pushes and pulls against encoding and decoding XOR + zstd-1."""
    rows = []
    for coder in CODERS:
        value = ratio(times.push[coder], times.encode["streamed"])
        rows.append(Row(f"push_{coder}", f"push ({coder}), against XOR + zstd-1 encoding", value, "x", "at most", 1.0))
    for coder in CODERS:
        value = ratio(times.pull[coder], times.decode["streamed"])
        what = f"stage + apply ({coder}), against XOR + zstd-1 decoding"
        rows.append(Row(f"pull_{coder}", what, value, "x", "at most", 1.0))
    for coder in CODERS:
        value = ratio(times.apply[coder], times.decode["streamed"])
        rows.append(Row(f"apply_{coder}", f"apply alone ({coder}), against XOR + zstd-1 decoding", value, "x"))
    return rows


def size_rows(sizes: list[dict[str, Any]]) -> list[Row]:
    """Return bits a changed cell: the worst step of each format."""

    def worst(name: str) -> float:
        return max(float(row["bits"][name]) for row in sizes)

    what = "bits a changed cell, worst step"
    return [
        *(Row(f"bits_{c}", f"{c}: {what}", worst(c), "bits", "at most", limit) for c, limit in BITS_LIMIT.items()),
        Row("bits_auto", f"auto: {what}", worst("auto"), "bits"),
        Row("bits_entropy", f"entropy given the old exponent: {what}", max(r["entropy_bits"] for r in sizes), "bits"),
        Row("bits_xor_zstd", f"XOR + zstd-1: {what}", worst("xor_zstd"), "bits"),
        Row("bits_raw", "int32 index + BF16 value: bits a changed cell", RAW_BITS, "bits"),
    ]


def memory_rows(extra: dict[str, dict[str, Any]]) -> list[Row]:
    """Return peak extra memory as a share of the published bytes."""
    rows = []
    for name, found in extra.items():
        what, coder = name.split()
        beyond = "beyond model and shadow" if what == "push" else "in place, beyond the weights"
        text = f"peak extra memory of a {what} ({coder}), {beyond}"
        rows.append(Row(f"memory_{what}_{coder}", text, found["peak_share"], "x", "at most", MEMORY_LIMIT[what]))
    return rows


def _bandwidth(values: list[float], nbytes: int) -> dict[str, float]:
    return {**milliseconds(values), "gb_per_s": round(nbytes / statistics.median(values) / 1e9, 2)}


def _times(times: Times) -> dict[str, Any]:
    def phases(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
        return {
            coder: {phase: round(statistics.median(values) * 1e3, 3) for phase, values in parts.items()}
            for coder, parts in found.items()
        }

    return {
        "push": {name: milliseconds(values) for name, values in times.push.items()},
        "stage_apply": {name: milliseconds(values) for name, values in times.pull.items()},
        "xor_zstd_encode": {name: milliseconds(values) for name, values in times.encode.items()},
        "xor_zstd_decode": {name: milliseconds(values) for name, values in times.decode.items()},
        "push_phases_ms": phases(times.push_phases),
        "pull_phases_ms": phases(times.pull_phases),
        "once_ms": {name: round(value * 1e3, 3) for name, value in times.once.items()},
    }
