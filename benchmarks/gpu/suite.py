"""All measurements on one policy: the kernels, torch's own ways beside them, in one run, and the limits.

Every result is checked against the states. Times are wall clock from a device that has nothing to do to one that has
nothing left to do (the stall: to the return of the call): launches and the copies of counts are in them.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import torch_ways
from benchmarks.gpu.clock import Spent, measured
from benchmarks.gpu.policy import Policy, make_policy, needed_bytes
from benchmarks.gpu.stall import measure_stall
from benchmarks.results import Row, machine, versions
from pulse_kernels.format.group import CoderName
from pulse_kernels.gpu.apply import gather, move, scatter, undo
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.coding.decode import Moves, decode_changes
from pulse_kernels.gpu.coding.encode import CodedGroups, encode_changes
from pulse_kernels.gpu.diff import diff
from pulse_kernels.gpu.digest import digest
from pulse_kernels.gpu.tiling import Tiling

SIZES = (8_000_000_000, 30_000_000_000)
LIMITED = 8_000_000_000
"""The size that limits are for."""
SHARE = 0.01
LIMITS = {"diff_ratio": 1.3, "apply": 3.0, "decode_class": 25.0, "digest": 12.0, "stall": 15.0}
"""The first against copying as many bytes, the others in milliseconds."""
TITLE = "Kernels on the GPU"
CODERS: tuple[CoderName, ...] = ("gap", "class")


def measure_policy(policy: Policy, repeats: int) -> dict[str, Any]:
    """Measure everything on one policy; return milliseconds, bytes of device memory and sizes by name."""
    found, changes, sizes = _kernels(policy, repeats)
    found["stall"] = measure_stall(policy, changes, "device", repeats)
    found["stall_host"] = measure_stall(policy, changes, "host", repeats)
    return {
        "cells": policy.cells,
        "tensors": len(policy.new),
        "changed": len(changes),
        "changed_share": round(len(changes) / policy.cells, 6),
        "milliseconds": {name: round(spent.median_ms, 4) for name, spent in found.items()},
        "device_bytes": {name: spent.nbytes for name, spent in found.items()},
        "bits": {coder: round(8 * size / max(1, len(changes)), 3) for coder, size in sizes.items()},
    }


def rows_of_policy(measures: dict[str, Any], *, limited: bool) -> list[Row]:
    """Return the figures of one policy; ``limited``: beside their limits."""
    name, spent = f"{measures['cells'] / 1e9:g} B cells", measures["milliseconds"]

    def row(key: str, what: str, value: float, unit: str = "ms") -> Row:
        if limited and key in LIMITS:
            return Row(f"{name}.{key}", f"{name}: {what}", value, unit, "at most", LIMITS[key])
        return Row(f"{name}.{key}", f"{name}: {what}", value, unit)

    rows = [row(key, what, spent[key]) for key, what in _WHAT.items()]
    against = "diff + compact, against copying as many bytes"
    rows.insert(2, row("diff_ratio", against, spent["diff"] / spent["copy"], "x"))
    rows += [
        row(f"bits_{coder}", f"{coder}: bits a changed cell", bits, "bits") for coder, bits in measures["bits"].items()
    ]
    for key in ("diff", "nonzero", "stall", "encode_class", "decode_class", "apply", "apply_dense"):
        megabytes = measures["device_bytes"][key] / 1e6
        rows.append(row(f"{key}_memory", f"{_WHAT[key]}: device memory beside the states", megabytes, "MB"))
    return rows


def gpu_document(
    device: str,
    sizes: Sequence[int],
    share: float,
    repeats: int,
    seed: int,
    say: Callable[[str], None] = print,
    **cut: int,
) -> dict[str, Any]:
    """Measure policies of several sizes; return the result document.

    Args:
        device: ``cuda``; or ``cpu``, where Triton interprets the kernels, if TRITON_INTERPRET is set.
        sizes: cells.
        share: of them that change.
        repeats: of each measurement.
        seed: of the cells.
        say: told what is being measured, and which sizes are left out.
        cut: ``group`` and ``tile`` of ``make_policy``.
    """
    rows: list[Row] = []
    details, skipped = [], {}
    for cells in sizes:
        room = _room(device)
        if room is not None and needed_bytes(cells) > room:
            why = f"needs {needed_bytes(cells) / 2**30:.0f} GiB of device memory, {room / 2**30:.0f} are free"
            skipped[str(cells)] = why
            say(f"{cells / 1e9:g} B cells: left out, {why}")
            continue
        say(f"{cells / 1e9:g} B cells")
        measures = measure_policy(make_policy(cells, share, device, seed, **cut), repeats)
        limited = device == "cuda" and cells == LIMITED and share == SHARE
        rows += rows_of_policy(measures, limited=limited)
        details.append(measures)
    return {
        "kind": "gpu",
        "title": TITLE,
        "machine": {**machine(), **_gpu(device)},
        "versions": versions() | {"triton": _triton()},
        "seed": seed,
        "settings": {"share": share, "repeats": repeats, "interpreted": os.environ.get("TRITON_INTERPRET") == "1"},
        "rows": [row.document() for row in rows],
        "policies": details,
        "skipped": skipped,
    }


def _kernels(policy: Policy, repeats: int) -> tuple[dict[str, Spent], Changes, dict[CoderName, int]]:
    """Measure all that needs both states; nothing of what it returns holds them."""
    old, new = policy.tilings()
    found = _diffs(policy, old, new, repeats)
    changes: Changes = found["diff"].result
    found |= _applying(policy, old, changes, repeats)
    found["digest"] = measured(policy.device, lambda: digest(old), repeats)
    coding, sizes = _coding(policy, old, changes, repeats)
    return {name: replace(spent, result=None) for name, spent in (found | coding).items()}, changes, sizes


def _diffs(policy: Policy, old: Tiling, new: Tiling, repeats: int) -> dict[str, Spent]:
    device = policy.device
    find = measured(device, lambda: diff(new, old), repeats)
    changes: Changes = find.result
    scratch = torch.empty(max(map(len, policy.old)), dtype=torch.int16, device=device)

    found = {
        "copy": measured(device, lambda: torch_ways.copy_bandwidth(policy.old, scratch), repeats),
        "diff": find,
        "nonzero": replace(measured(device, lambda: torch_ways.nonzero(policy.old, policy.new), repeats), result=None),
    }
    expected = sum(int((a != b).sum()) for a, b in zip(policy.old, policy.new, strict=True))
    if len(changes) != expected:
        raise AssertionError(f"the diff finds {len(changes)} changed cells, torch {expected}")
    return found


def _applying(policy: Policy, old: Tiling, changes: Changes, repeats: int) -> dict[str, Spent]:
    device = policy.device
    scatter(old, changes)
    _check_equal(policy.old, policy.new, "apply")
    undo(old, changes)
    found = {"apply": measured(device, lambda: scatter(old, changes), repeats, after=lambda: undo(old, changes))}
    sparse = torch_ways.nonzero(policy.old, policy.new)

    def back() -> None:
        torch_ways.put_back(policy.old, sparse)

    found["index_put"] = measured(device, lambda: torch_ways.index_put(policy.old, sparse), repeats, after=back)
    found["index_copy"] = measured(device, lambda: torch_ways.index_copy(policy.old, sparse), repeats, after=back)
    found["apply_dense"] = _dense(policy, sparse, repeats)
    return found


def _dense(policy: Policy, sparse: torch_ways.Sparse, repeats: int) -> Spent:
    """Sum up over the tensors, each staged alone: all at once would take as much memory as the weights."""
    total, most = np.zeros(repeats), 0
    for tensor, changed in zip(policy.old, sparse, strict=True):
        staged = torch_ways.stage(tensor, changed)

        def apply(tensor: torch.Tensor = tensor, staged: torch.Tensor = staged) -> None:
            torch_ways.apply_staged(tensor, staged)

        spent = measured(policy.device, apply, repeats)
        total += np.array(spent.seconds)
        most += staged.nbytes
        tensor[changed[0]] = changed[1]
    return Spent(tuple(total.tolist()), most)


def _coding(
    policy: Policy, old: Tiling, changes: Changes, repeats: int
) -> tuple[dict[str, Spent], dict[CoderName, int]]:
    device, tiles = policy.device, policy.tiles
    found: dict[str, Spent] = {}
    sizes: dict[CoderName, int] = {}
    counts = np.diff(changes.host_offsets)
    for coder in CODERS:

        def encode(coder: CoderName = coder) -> CodedGroups:
            return encode_changes(changes, coder, old)

        found[f"encode_{coder}"] = encoded = measured(device, encode, repeats)
        data, offsets = encoded.result.data.cpu().numpy(), encoded.result.offsets.tolist()
        groups = [data[begin:end].data for begin, end in itertools.pairwise(offsets)]
        sizes[coder] = offsets[-1]

        def decode(coder: CoderName = coder, groups: list[memoryview] = groups) -> Moves:
            return decode_changes(tiles, coder, counts, groups, old)

        found[f"decode_{coder}"] = decoded = measured(device, decode, repeats)
        moves: Moves = decoded.result
        now = move(tiles, changes.tile_offsets, gather(old, changes.tile_offsets, moves.index), moves.distance)
        if not (torch.equal(moves.index, changes.index) and torch.equal(now, changes.new)):
            raise AssertionError(f"{coder} does not give the changes back")
    return found, sizes


def _check_equal(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], what: str) -> None:
    if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
        raise AssertionError(f"{what} does not give the new state")


def _room(device: str) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device == "cuda" else None


def _gpu(device: str) -> dict[str, Any]:
    if device != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    name = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, driver {driver}, CUDA {torch.version.cuda}"
    return {"gpu": name}


def _triton() -> str:
    import importlib.metadata

    return importlib.metadata.version("triton")


_WHAT = {
    "copy": "copying one state, torch",
    "diff": "diff + compact",
    "nonzero": "diff by torch's nonzero and indexing",
    "stall": "what a push stalls the trainer: the advance of its shadow on the device",
    "stall_host": "the same, of its shadow in pinned host memory",
    "encode_gap": "encode gap",
    "encode_class": "encode class",
    "decode_gap": "decode gap, from host memory",
    "decode_class": "decode class, from host memory",
    "apply": "apply",
    "index_put": "apply by torch's index_put_",
    "index_copy": "apply by torch's index_copy_",
    "apply_dense": "apply by dense staging, NaN-masked",
    "digest": "full digest",
}
