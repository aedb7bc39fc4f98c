"""Mutants of jobs: the library with one safeguard of sharded pushes taken away, to see that the simulator sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from pulse_kernels import Index
from pulse_registry.peers.vote import Attempt
from pulse_registry.push import holdings, replicas, sharded_patch
from pulse_registry.weights import slice_map
from pulse_registry.weights.cell_space import Group
from tests.scenarios.simulator.job_peers import Wire
from tests.scenarios.simulator.mutants import Mutant
from tests.scenarios.simulator.weather import Weather

_FAILURES = Weather(fail=0.05)


def _no_cover_digest(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(holdings, "covers", lambda *work: True)


def _no_replica_check(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(replicas, "check_replicas", lambda *work, **options: None)


def _no_sums(patched: pytest.MonkeyPatch) -> None:
    """Take what was coded for what the ranks found changed."""
    real = sharded_patch.sum_lanes

    def summed(peers: Any, lanes: Sequence[int], what: str) -> tuple[int, ...]:
        added = real(peers, lanes, what)
        return (*added[2:], *added[2:]) if what == "delta" else added

    patched.setattr(sharded_patch, "sum_lanes", summed)
    patched.setattr(Wire, "drawn", lambda *_: Wire(damage=0.1))


def _replicas_apart(patched: pytest.MonkeyPatch) -> None:
    """Let each rank speak for all that it holds."""
    patched.setattr(holdings, "holders", lambda peers, hashes, *work: [(0, 1)] * len(hashes))


def _no_vote(patched: pytest.MonkeyPatch) -> None:
    """Store the head of a patch, and commit it, whatever went wrong with its parts."""
    real = Attempt.agree

    def agree(self: Attempt, what: str = "vote") -> None:
        if what == "upload":
            self.failure = None
        real(self, what)

    patched.setattr(Attempt, "agree", agree)
    patched.setattr(Wire, "drawn", lambda *_: Wire())


def _one_row_late(patched: pytest.MonkeyPatch) -> None:
    """Let a slice's filter leave out its first row, or its first cell, where all of it is one row."""
    real = slice_map.SliceMap.split

    def split(self: slice_map.SliceMap, group: Group, index: Index) -> Iterator[slice_map.Piece]:
        for one, chosen, local in real(self, group, index):
            row = one.box.sizes[-1] if one.box.start is None else 1
            rows = np.flatnonzero(local >= row)
            yield one, np.arange(len(index))[chosen][rows], local[rows]

    patched.setattr(slice_map.SliceMap, "split", split)


JOB_MUTANTS = (
    Mutant("cover digest", "the ranks together speak for each cell once", _no_cover_digest, seed=4, ranks=9),
    Mutant("replica check", "what several ranks hold is the same on all of them", _no_replica_check, seed=5, ranks=9),
    Mutant("sums of ranks", "what is coded is what the ranks found changed, by their sums", _no_sums, ranks=9),
    Mutant("replicas", "of the ranks that hold a cell, one speaks for it", _replicas_apart, ranks=9),
    Mutant("vote", "nothing is committed if one rank has failed", _no_vote, _FAILURES, seed=2, ranks=9),
    Mutant("filter of slices", "a rank takes the cells of its slices, and no others", _one_row_late, seed=4, ranks=9),
)
