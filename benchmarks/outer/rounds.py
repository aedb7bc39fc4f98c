"""Recorded rounds, as replays read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.outer.inner import Floats

Shapes = Sequence[tuple[str, tuple[int, ...]]]


class Rounds(Protocol):
    """Recorded rounds: of a folder (``recording.Recorded``), or of a part that is kept (``sample.Sample``)."""

    @property
    def shapes(self) -> Shapes:
        """Names and shapes of the tensors, in flat order."""

    @property
    def start(self) -> npt.NDArray[np.uint16]:
        """BF16 weights that round 1 begins with."""

    @property
    def trainers(self) -> int:
        """How many."""

    @property
    def rounds(self) -> int:
        """How many."""

    def pseudo_gradient(self, round_: int, trainer: int) -> Floats:
        """Weights of the round's start less the trainer's own after its inner steps; rounds count from 1."""
