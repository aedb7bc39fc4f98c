"""The report of a run of outer rounds: one JSON document of all that was measured and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pulse_registry.demo.outer.board import Board
from pulse_registry.demo.outer.events import Ended
from pulse_registry.demo.outer.settings import TRAINERS, Settings


def make_report(settings: Settings, board: Board, problems: Sequence[str]) -> dict[str, Any]:
    """Return the report as JSON values. Times are seconds since the run began, sizes bytes."""
    sent = [one for rounds in board.rounds.values() for one in rounds]
    nbytes = sum(one.nbytes for one in sent)
    dense = 4 * board.cells * len(sent)
    return {
        "kind": "demo-outer",
        "format": 1,
        "ok": not problems,
        "model": settings.model,
        "cells": board.cells,
        "rounds": board.round,
        "layers": settings.layers,
        "inner_steps": settings.inner_steps,
        "learning_rate": settings.learning_rate,
        "gain": settings.gain,
        "seed": settings.seed,
        "seconds": board.seconds(board.ended or board.began),
        "sent_bytes": nbytes,
        "sent_bytes_dense": dense,
        "bits_per_entry": 8 * nbytes / max(1, sum(one.entries for one in sent)),
        "peak_rss": max((one.rss for one in sent), default=0),
        "by_round": [_round(board, number) for number in range(1, board.round + 1)],
        "trainers": [_trainer(board, name) for name in TRAINERS],
        "workers": [
            {"name": name, "pulls": [dataclasses.asdict(one) | {"at": board.seconds(one.at)} for one in pulls]}
            for name, pulls in sorted(board.pulls.items())
        ],
        "problems": list(problems),
    }


def _round(board: Board, number: int) -> dict[str, Any]:
    members, late = board.were_there(number)
    return {"round": number, "members": members, "late": late}


def _trainer(board: Board, name: str) -> dict[str, Any]:
    trained = board.trained.get(name)
    return {
        "name": name,
        "changes": [
            {"change": one.change, "at": board.seconds(one.at)} for one in board.changes if one.trainer == name
        ],
        "joined": [
            {"round": one.round, "unsent": one.unsent, "at": board.seconds(one.at)}
            for one in board.joined.get(name, ())
        ],
        "rounds": [_ended(board, one) for one in board.rounds.get(name, ())],
        "theta": None if trained is None else trained.theta,
        "momentum": None if trained is None else trained.momentum,
        "sha256": None if trained is None else trained.sha256,
    }


def _ended(board: Board, one: Ended) -> dict[str, Any]:
    told = {key: value for key, value in dataclasses.asdict(one).items() if key not in ("trainer", "members", "late")}
    return told | {"at": board.seconds(one.at), "density": one.entries / max(1, one.cells)}
