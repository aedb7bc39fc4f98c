"""The report: one JSON document of all that a run of the demo measured and checked."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from typing import Any

from pulse_registry.demo.board import Board, WorkerState
from pulse_registry.demo.verdict import Verdict


def make_report(board: Board, verdict: Verdict) -> dict[str, Any]:
    """Return the report as JSON values. Times are in seconds, sizes in bytes.

    Of a trainer alone it is of format 1; of one of several ranks of format 2, which also tells of ranks.
    """
    settings = board.settings
    return {
        "format": 1 if settings.ranks == 1 else 2,
        "ok": verdict.good,
        "model": settings.source.name,
        "parameters": board.loaded.parameters if board.loaded is not None else None,
        "full_bytes": board.full_nbytes,
        "root": settings.root,
        "run": settings.run,
        "seed": settings.seed,
        "steps": settings.steps,
        "completions_per_step": settings.groups * settings.group_size,
        "learning_rate": settings.learning_rate,
        "seconds": board.seconds,
        "versions": [_version(board, number) for number in sorted(board.published)],
        "workers": [_worker(board, worker) for worker in board.in_order],
        "staleness": _staleness(board),
        "totals": _totals(board),
        **_ranks(board),
        "checks": {
            "every_worker_equals_trainer": verdict.good,
            "pulls_compared": verdict.pulls,
            "versions_in_store": verdict.versions,
            "problems": list(verdict.problems),
        },
    }


def _ranks(board: Board) -> dict[str, Any]:
    """Return who the ranks are, and which part of the weights each has memory for."""
    settings = board.settings
    if settings.ranks == 1:
        return {}
    shards = [board.shards[name] for name in (*settings.trainer_names, *settings.sharded_names) if name in board.shards]
    return {"ranks": [dataclasses.asdict(shard) for shard in shards]}


def _version(board: Board, number: int) -> dict[str, Any]:
    entry = board.published[number]
    stepped = board.stepped.get(entry.step)
    left_out = ("slices",) if board.settings.ranks == 1 else ()
    return {
        **{name: value for name, value in dataclasses.asdict(entry).items() if name not in left_out},
        "changed_percent": 100 * entry.changed / entry.cells,
        "smaller": entry.full_nbytes / entry.nbytes,
        "committed_at": board.published_at[number],
        "training": dataclasses.asdict(stepped) if stepped is not None else None,
    }


def _worker(board: Board, worker: WorkerState) -> dict[str, Any]:
    left_out = ("worker", "role", *(("checked",) if board.settings.ranks == 1 else ()))
    return {
        "name": worker.name,
        "role": worker.role,
        "pulls": [
            {
                "at": at,
                **{k: v for k, v in dataclasses.asdict(pulled).items() if k not in left_out},
                "equal": board.wanted(worker.name, pulled.version) == pulled.sha256,
            }
            for at, pulled in worker.pulls
        ],
        "completions": worker.completions,
        "tokens": worker.tokens,
        "generating_seconds": worker.generating,
        "final_version": worker.checked.version if worker.checked is not None else None,
        "final_sha256": worker.checked.sha256 if worker.checked is not None else None,
    }


def staleness(board: Board) -> list[int]:
    """Return how many versions each group of completions was behind when the trainer learned from it."""
    return [behind for stepped in board.stepped.values() for behind in stepped.staleness]


def _staleness(board: Board) -> dict[str, Any]:
    behind = staleness(board)
    if not behind:
        return {"mean": 0.0, "max": 0, "counts": {}}
    counts = {str(versions): count for versions, count in sorted(Counter(behind).items())}
    return {"mean": statistics.fmean(behind), "max": max(behind), "counts": counts}


def _totals(board: Board) -> dict[str, Any]:
    """Return what travelled, and what would have if every push and every pull of a version carried all weights."""
    pulls = [pulled for worker in board.in_order for _, pulled in worker.pulls]
    patches = [entry for entry in board.published.values() if entry.kind == "patch"]
    return {
        "pushed_bytes": sum(entry.nbytes for entry in board.published.values()),
        "pushed_bytes_full": sum(entry.full_nbytes for entry in board.published.values()),
        "pulled_bytes": sum(pulled.nbytes for pulled in pulls),
        "pulled_bytes_full": sum(
            board.shards[pulled.worker].nbytes if pulled.worker in board.shards else board.full_nbytes
            for pulled in pulls
        ),
        "patch_bits_per_changed_cell": (
            8 * sum(entry.nbytes for entry in patches) / max(1, sum(entry.changed for entry in patches))
        ),
    }
