"""The report of a run with engines: one JSON document of all that was measured and compared."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from pulse_registry.demo.vllm.board import Board
from pulse_registry.demo.vllm.events import Followed
from pulse_registry.demo.vllm.proof import Proof
from pulse_registry.demo.vllm.settings import Settings


def make_report(settings: Settings, board: Board, proof: Proof) -> dict[str, Any]:
    """Return the report as JSON values. Times are seconds since the run began, sizes bytes."""
    gaps = [completion.longest_gap for completion in board.completions]
    staleness = board.staleness()
    return {
        "kind": "demo-vllm",
        "format": 1,
        "ok": not proof.problems,
        "model": settings.model,
        "run": settings.run,
        "seed": settings.seed,
        "steps": settings.steps,
        "completions_per_step": settings.prompts * settings.group_size,
        "learning_rate": settings.learning_rate,
        "seconds": board.seconds(board.ended or board.began),
        "versions": [
            {**dataclasses.asdict(version), "at": board.seconds(version.at), "reward": board.rewards.get(version.step)}
            for _, version in sorted(board.versions.items())
        ],
        "engines": [_engine(board, name) for name in board.serving],
        "streams": {
            "completions": len(board.completions),
            "tokens": sum(len(completion.tokens_at) for completion in board.completions),
            "of_several_versions": board.crossing(),
            "longest_gap_s": max(gaps, default=None),
            "staleness": {str(behind): count for behind, count in sorted(staleness.items())},
        },
        "failed_changes": [dataclasses.asdict(failure) for failure in board.failures],
        "proof": dataclasses.asdict(proof),
    }


def _engine(board: Board, name: str) -> dict[str, Any]:
    serving, changes = board.serving[name], board.followed[name]
    return {
        "name": name,
        "loaded": serving.version,
        "start_s": serving.seconds,
        "serving_at": board.seconds(serving.at),
        "changes": [_change(board, change) for change in changes],
        "median_pause_s": statistics.median(change.pause_s for change in changes) if changes else None,
    }


def _change(board: Board, change: Followed) -> dict[str, Any]:
    told = {key: value for key, value in dataclasses.asdict(change).items() if key != "engine"}
    since = change.at - board.versions[change.version].at
    return {**told, "at": board.seconds(change.at), "after_commit_s": since}
