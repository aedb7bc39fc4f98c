"""All benchmarks on one run of states: measure, then lay the figures beside their limits."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bandwidth import measure_bandwidth
from benchmarks.codec import measure_coders
from benchmarks.codecs import codec_rows, codecs_document, measure_codecs
from benchmarks.memory import STEPS, measure_memory
from benchmarks.pauses import measure_pauses, pause_rows
from benchmarks.peers import fireworks
from benchmarks.push_pull import CODERS, Times, measure_push_pull, warm_up
from benchmarks.results import Row, machine, versions
from benchmarks.states import States, save_states
from benchmarks.timing import milliseconds, ratio
from pulse_kernels import get_backend
from pulse_registry.format.patch_coding import CoderChoice

MIN_REPEATS = 5
DIFF_LIMIT, DIGEST_LIMIT, DIGEST_CORE_LIMIT = 0.9, 0.85, 0.5
PUSH_LIMIT = {"gap": 0.31, "class": 0.6}
PULL_LIMIT = {"gap": 0.3, "class": 0.8}
BITS_LIMIT = {"gap": 13.5, "class": 8.0}
ENTROPY_LIMIT = 1.06
MEMORY_LIMIT = {"push": 0.25, "pull": 0.1}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """What to measure besides the library's own times and bytes, and with what.

    Attributes:
        memory: coders whose memory is measured, each in processes of its own.
        peers: measure others' codecs.
        home: the environment of a peer that is a package.
        install: make that environment where it is missing.
    """

    memory: tuple[CoderChoice, ...] = CODERS
    peers: bool = True
    home: Path = field(default_factory=fireworks.default_home)
    install: bool = True


def run_suite(
    states: States, threads: int, repeats: int, *, parts: Parts | None = None, say: Say = print
) -> dict[str, Any]:
    """Measure everything; return the result document.

    Args:
        states: to run on.
        threads: of the measurements that are not the library's (it takes one a core).
        repeats: of each, at least ``MIN_REPEATS``.
        parts: what else to measure; None: everything.
        say: told what is being measured.
    """
    if repeats < MIN_REPEATS:
        raise ValueError(f"{repeats} repeats are too few for a median; take {MIN_REPEATS} or more")
    parts = parts or Parts()
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
        say("pauses")
        pauses = measure_pauses(states, root / "pauses", threads, repeats)
        codecs = None
        if parts.peers:
            say("others' codecs")
            (root / "peers").mkdir()
            codecs = measure_codecs(states, threads, repeats, parts.home, root / "peers", install=parts.install)
            for name, why in codecs.skipped.items():
                say(f"skipped {name}: {why}")
        extra: dict[str, dict[str, Any]] = {}
        if parts.memory:
            say("memory")
            (root / "states").mkdir()
            save_states(states, root / "states", min(STEPS, len(states.steps)) + 1)
            extra = measure_memory(states, root / "states", root / "runs", parts.memory)
    rows = [
        *bandwidth_rows(bandwidth, touched),
        *time_rows(times),
        *pause_rows(pauses),
        *size_rows(sizes),
        *(codec_rows(states, codecs, [row["bytes"]["class"] for row in sizes]) if codecs else ()),
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
        "pauses": {name: milliseconds(values) for name, values in pauses.items()},
        "coders": coders,
        "sizes": sizes,
        "peers": codecs_document(states, codecs) if codecs else {},
        "memory": extra,
    }


def bandwidth_rows(bandwidth: dict[str, list[float]], touched: dict[str, int]) -> list[Row]:
    """Return diff and digest against copying and reading."""

    def against(name: str, other: str) -> float:
        return ratio(bandwidth[other], bandwidth[name]) * touched[name] / touched[other]

    copy = statistics.median(bandwidth["copy"])
    rows = [
        Row("copy", "NumPy copy, read + written", touched["copy"] / copy / 1e9, "GB/s"),
        Row("diff", "diff, against copy bandwidth", against("diff", "copy"), "x", "at least", DIFF_LIMIT),
    ]
    if "diff_f32" in bandwidth:
        what = "diff of FP32 masters against BF16, against copy bandwidth"
        rows.append(Row("diff_f32", what, against("diff_f32", "copy"), "x"))
    what = "state digest, full pass, against read bandwidth"
    rows.append(Row("digest", what, against("digest", "read"), "x", "at least", DIGEST_LIMIT))
    what = "state digest, full pass in one thread, against read bandwidth in one"
    rows.append(Row("digest_core", what, against("digest_core", "read_core"), "x", "at least", DIGEST_CORE_LIMIT))
    return rows


def time_rows(times: Times) -> list[Row]:
    """Return pushes and pulls against encoding and decoding XOR + zstd-1: without the store's part, then whole."""
    encode, decode = times.encode["streamed"], times.decode["streamed"]
    rows = []
    for coder in CODERS:
        what = f"push ({coder}), diff + code, against XOR + zstd-1 encoding"
        rows.append(_row(f"push_core_{coder}", what, ratio(times.push_core[coder], encode), PUSH_LIMIT.get(coder)))
    for coder in CODERS:
        what = f"pull ({coder}), decode + verify + apply, against XOR + zstd-1 decoding"
        rows.append(_row(f"pull_core_{coder}", what, ratio(times.pull_core[coder], decode), PULL_LIMIT.get(coder)))
    for name, title, found, against in (
        ("push", "whole push", times.push, encode),
        ("pull", "stage + apply", times.pull, decode),
        ("apply", "apply alone", times.apply, decode),
    ):
        of = "encoding" if name == "push" else "decoding"
        for coder in CODERS:
            what = f"{title} ({coder}), against XOR + zstd-1 {of}"
            rows.append(_row(f"{name}_{coder}", what, ratio(found[coder], against)))
    return rows


def size_rows(sizes: list[dict[str, Any]]) -> list[Row]:
    """Return bits a changed cell: means over the steps, and how far the worst step of ``class`` is from the entropy."""

    def mean(name: str) -> float:
        return statistics.mean(float(row["bits"][name]) for row in sizes)

    what = "bits a changed cell, mean"
    far = max(row["bits"]["class"] / row["entropy_bits"] for row in sizes)
    entropy = statistics.mean(row["entropy_bits"] for row in sizes)
    return [
        *(Row(f"bits_{c}", f"{c}: {what}", mean(c), "bits", "at most", limit) for c, limit in BITS_LIMIT.items()),
        Row("bits_auto", f"auto: {what}", mean("auto"), "bits"),
        Row("bits_entropy", f"entropy given the old exponent: {what}", entropy, "bits"),
        Row("entropy", "class against that entropy, worst step", far, "x", "at most", ENTROPY_LIMIT),
        Row("bits_xor_zstd", f"XOR + zstd-1: {what}", mean("xor_zstd"), "bits"),
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


def _row(key: str, what: str, value: float, at_most: float | None = None) -> Row:
    return Row(key, what, value, "x") if at_most is None else Row(key, what, value, "x", "at most", at_most)


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
        "push_core": {name: milliseconds(values) for name, values in times.push_core.items()},
        "stage_apply_core": {name: milliseconds(values) for name, values in times.pull_core.items()},
        "stage_apply": {name: milliseconds(values) for name, values in times.pull.items()},
        "xor_zstd_encode": {name: milliseconds(values) for name, values in times.encode.items()},
        "xor_zstd_decode": {name: milliseconds(values) for name, values in times.decode.items()},
        "push_phases_ms": phases(times.push_phases),
        "pull_phases_ms": phases(times.pull_phases),
        "once_ms": {name: round(value * 1e3, 3) for name, value in times.once.items()},
    }
