"""``python -m benchmarks bases``: what first versions of many fine-tunings store that begin with one shared base.

Bytes are counted, of every object of the root. The weights are normal, and each fine-tuning moves one percent of the
cells, at random, to a neighbouring value.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes
import numpy as np
import typer
from rich.console import Console

from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from benchmarks.synthetic import DEFAULT_CELLS, shapes
from pulse_registry import PushOptions, RetentionPolicy, open

TITLE = "First versions on a shared base"
LENDER = "base"
LIMIT = 1.2
"""Keyframes that all runs store together, beside their patches."""
SHARE = 0.01
_NOW = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0)
Model = dict[str, np.ndarray[Any, Any]]


def weights(cells: int, seed: int) -> Model:
    """Return a small policy's BF16 weights."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape, np.float32) * 0.02).astype(ml_dtypes.bfloat16)
        for name, shape in shapes(cells)
    }


def tuned(base: Model, seed: int) -> Model:
    """Return the weights with one percent of the cells changed."""
    rng = np.random.default_rng(seed)
    model = {name: array.copy() for name, array in base.items()}
    for array in model.values():
        flat = array.reshape(-1).view(np.uint16)
        at = rng.choice(flat.size, max(1, int(SHARE * flat.size)), replace=False)
        flat[at] ^= 1
    return model


def stored(root: Path, folder: str = "") -> int:
    """Return the bytes of all files below a folder of a root."""
    return sum(path.stat().st_size for path in (root / folder).rglob("*") if path.is_file())


def measure(root: Path, cells: int, runs: int, seed: int) -> dict[str, Any]:
    """Begin so many runs with one version of another; return the rows, and what is behind them."""
    base = weights(cells, seed)
    with open(root, run=LENDER) as lender:
        keyframe = lender.push(0, base).nbytes
    patches, digests = 0, []
    for number in range(runs):
        with open(root, run=f"tune-{number:02d}", push=PushOptions(base=f"{LENDER}@0")) as registry:
            pushed = registry.push(0, tuned(base, seed + 1 + number))
            patches += pushed.nbytes
            digests.append(pushed.digest)
    whole = stored(root)
    beside = whole - stored(root, LENDER)
    with open(root, run=LENDER) as lender:
        for _ in range(2):
            lender.gc(_NOW, dry_run=False)
    collected = stored(root)
    shutil.rmtree(root / LENDER)
    verified = 0
    for number, digest in enumerate(digests):
        with open(root, run=f"tune-{number:02d}", create=False) as registry:
            verified += registry.verify().digest == digest
    rows = [
        Row("shared", f"{runs} runs, beside their patches", (beside - patches) / keyframe, "x", "at most", LIMIT),
        Row("collected", "with the lender, collected", (collected - patches) / keyframe, "x", "at most", LIMIT),
        Row("before", "with the lender, before that", (whole - patches) / keyframe, "x"),
        Row("whole", "each run's first version whole", float(runs), "x"),
        Row("patches", "all patches together", patches / keyframe, "x"),
        Row("verified", "runs whole once the lender is deleted", float(verified), "runs", "at least", float(runs)),
    ]
    return {
        "bytes": {"keyframe": keyframe, "patches": patches, "runs": beside, "root": whole, "collected": collected},
        "rows": [row.document() for row in rows],
    }


def run(
    cells: Annotated[int, typer.Option(help="Of the model.", min=10_000)] = DEFAULT_CELLS,
    runs: Annotated[int, typer.Option(help="That begin with it.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Of weights and changes.")] = 0,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "bases.json",
) -> None:
    """Count what first versions on a shared base store; write a result file."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), cells, runs, seed)
    console.print(rows_table(f"{TITLE}, in keyframes", map(Row.parse, measured["rows"])))
    document = {"kind": "bases", "title": f"{TITLE}: {runs} of {cells:,} cells, in keyframes", "seed": seed}
    settings = {"cells": cells, "runs": runs, "share": SHARE}
    write_result(out, document | {"machine": machine(), "versions": versions(), "settings": settings} | measured)
    console.print(f"written to {out}")
