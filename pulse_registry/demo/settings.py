"""What a run of the demo is made of: its model, its size, its folders, its share of the machine."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path

from pulse_registry.demo.source import Source, SourceNotFound, locate
from pulse_registry.process.cores import usable_cores

TRAINER, SHARDED, LATE, LAGGARD = "trainer", "sharded", "late-joiner", "laggard"
"""Names of processes; the rollout workers are numbered, and so are ranks."""
SHARDED_RANKS = 2
"""Of the sharded worker."""
REQUIRED = ("torch", "transformers", "accelerate", "gguf", "matplotlib")


class NotPossible(Exception):
    """The demo can't start: an argument is not valid, or something is not installed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the demo. Seeds are fixed; what an asynchronous run does still depends on who is faster.

    Attributes:
        source: where the model comes from.
        steps: optimizer steps; the run has one version more than that.
        ranks: of the trainer. From 2 on it is sharded by FSDP2, and there is a worker that holds slices.
        groups: prompts a step, as many for each rank, and each answered ``group_size`` times in at most ``new_tokens``
            tokens.
        learning_rate: of AdamW. 1e-6 is what RL runs of language models use, and why so few BF16 cells change.
        clip: how far a token's probability ratio may leave 1 before its gradient is cut off.
        late_after: versions that exist before the late worker starts.
        lag: versions that the laggard lets pass before it pulls again.
        patience: seconds without a sign of life after which the run is given up.
        root, run: the registry.
        out: folder of the report, the chart and the logs.
    """

    source: Source
    steps: int
    root: str
    run: str
    out: Path
    ranks: int = 1
    groups: int = 4
    group_size: int = 8
    new_tokens: int = 12
    learning_rate: float = 1e-6
    clip: float = 0.2
    seed: int = 17
    rollout_workers: int = 2
    late_after: int = 5
    lag: int = 5
    patience: float = 300.0

    @classmethod
    def of(cls, *, steps: int | None, model: str | None, ranks: int, root: str | None, out: Path | None) -> Settings:
        """Fill in what was not said.

        Raises:
            NotPossible: an argument is not valid, or something is not installed.
        """
        missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
        if missing:
            raise NotPossible(f"not installed: {', '.join(missing)}. Try: pip install 'pulse-registry[demo]'")
        steps = 12 if steps is None else steps
        if steps < 1:
            raise NotPossible(f"--steps is {steps}; it is at least 1")
        if ranks < 1:
            raise NotPossible(f"--ranks is {ranks}; it is at least 1")
        if root is not None and root.startswith("memory:"):
            raise NotPossible("--root is in memory, which processes can't share; give a folder or another URL")
        try:
            source = locate(model)
        except SourceNotFound as error:
            raise NotPossible(str(error)) from error
        stamp = time.strftime("%Y%m%d-%H%M%S")
        out = (out or Path(f"pulse-demo-{stamp}")).absolute()
        try:
            (out / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotPossible(f"can't make the folder {out}: {error}") from error
        return cls(
            source=source,
            steps=steps,
            root=root if root is not None else str(out / "registry"),
            run=f"demo-{stamp}",
            out=out,
            ranks=ranks,
            groups=ranks * max(1, 4 // ranks),
            late_after=min(5, steps),
            lag=min(5, steps),
        )

    @property
    def rollout_names(self) -> list[str]:
        """Return the names of the workers that are there from the beginning and generate."""
        return [f"rollout-{number + 1}" for number in range(self.rollout_workers)]

    @property
    def trainer_names(self) -> list[str]:
        """Return the names of the trainer's ranks; of a trainer alone, its own."""
        return [TRAINER] if self.ranks == 1 else _names_of_ranks(TRAINER, self.ranks)

    @property
    def sharded_names(self) -> list[str]:
        """Return the names of the sharded worker's ranks; none beside a trainer alone."""
        return [] if self.ranks == 1 else _names_of_ranks(SHARDED, SHARDED_RANKS)

    @property
    def worker_names(self) -> list[str]:
        """Return the names of all workers, and of the ranks of the sharded one."""
        return [*self.rollout_names, *self.sharded_names, LATE, LAGGARD]

    @property
    def in_flight(self) -> int:
        """Return how many prompts are out at a time: a step's worth, and one for each worker to be busy with."""
        return self.groups + self.rollout_workers

    @property
    def trainer_threads(self) -> int:
        """Return a trainer's rank's share of the cores: of all, since workers have nothing to do while it learns."""
        return max(1, usable_cores() // self.ranks)

    @property
    def worker_threads(self) -> int:
        """Return a worker's share of the cores."""
        return max(1, usable_cores() // self.rollout_workers)


def _names_of_ranks(name: str, ranks: int) -> list[str]:
    return [f"{name}-{rank}" for rank in range(ranks)]
