"""A part of recorded rounds that is kept in the repository: stretches of cells from the whole model, evenly spread.

``python -m benchmarks outer sample FOLDER`` cuts it from a folder of recorded rounds (``recording``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.outer.rounds import Rounds

SAMPLE = Path(__file__).parents[1] / "recorded" / "outer-rounds.npz"
STRETCHES, LENGTH = 64, 1024
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sample:
    """Recorded rounds of some cells.

    Attributes:
        start: BF16 weights that round 1 begins with.
        gradients: pseudo-gradients, by round, trainer and cell.
        recipe: how the rounds were recorded.
    """

    start: npt.NDArray[np.uint16]
    gradients: Floats
    recipe: dict[str, Any]

    @classmethod
    def read(cls, path: Path = SAMPLE) -> Sample:
        """Read a file that ``write`` wrote."""
        with np.load(path) as found:
            planes = found["planes"]
            cells = np.ascontiguousarray(np.moveaxis(planes, 2, -1)).view(np.float32)[..., 0]
            return cls(found["start"], cells, json.loads(bytes(found["recipe"])))

    def write(self, path: Path) -> None:
        """Write the sample, compressed: the four bytes of a value lie in planes of their own."""
        planes = np.moveaxis(
            np.ascontiguousarray(self.gradients).view(np.uint8).reshape(*self.gradients.shape, 4), -1, 2
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        recipe = np.frombuffer(json.dumps(self.recipe).encode(), np.uint8)
        np.savez_compressed(path, start=self.start, planes=np.ascontiguousarray(planes), recipe=recipe)

    @property
    def shapes(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """One tensor of all."""
        return [("stretches", (len(self.start),))]

    @property
    def rounds(self) -> int:
        """How many."""
        return self.gradients.shape[0]

    @property
    def trainers(self) -> int:
        """How many."""
        return self.gradients.shape[1]

    def pseudo_gradient(self, round_: int, trainer: int) -> Floats:
        """Weights of the round's start less the trainer's own after its inner steps; rounds count from 1."""
        found: Floats = self.gradients[round_ - 1, trainer]
        return found


def cut(rounds: Rounds, recipe: dict[str, Any], stretches: int = STRETCHES, length: int = LENGTH) -> Sample:
    """Take stretches of recorded rounds, evenly spread over all cells."""
    starts = np.linspace(0, len(rounds.start) - length, stretches).astype(np.int64)
    index = (starts[:, None] + np.arange(length)).reshape(-1)
    gradients = [
        [np.asarray(rounds.pseudo_gradient(round_, trainer))[index] for trainer in range(rounds.trainers)]
        for round_ in range(1, rounds.rounds + 1)
    ]
    return Sample(np.asarray(rounds.start)[index], np.array(gradients, np.float32), recipe)


def run(
    folder: Annotated[Path, typer.Argument(help="Of recorded rounds.")],
    out: Annotated[Path, typer.Option(help="The file.")] = SAMPLE,
) -> None:
    """Cut the part of recorded rounds that the tests replay."""
    from benchmarks.outer.recording import Recorded

    recorded = Recorded.read(folder)
    cut(recorded, asdict(recorded.recipe)).write(out)
    print(f"written to {out}: {out.stat().st_size:,} bytes")
