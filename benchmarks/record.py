"""Recording of steps: the demo trains its model with another seed; its last versions are states to measure on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from pulse_registry import Registry, open
from pulse_registry.demo.settings import Settings
from pulse_registry.demo.show import run_and_show


class NotRecorded(Exception):
    """The demo did not end with all of its workers equal, so that its versions are no states to measure on."""


def record_steps(folder: Path, seed: int, steps: int, states: int, model: str | None) -> list[Path]:
    """Run the demo's GRPO, and write its last versions as safetensors files; return them.

    Which prompts a step learns from depends on which worker is faster, so that the same seed gives like states, and not
    the same ones.

    Args:
        folder: where they go.
        seed: of the demo.
        steps: that it makes.
        states: versions to write, the last ones.
        model: as ``pulse demo`` takes it.

    Raises:
        NotRecorded: the demo failed; its registry, report and logs are kept.
        NotPossible: it cannot run here.
    """
    scratch = Path(tempfile.mkdtemp(prefix="pulse-record-"))
    settings = replace(Settings.of(steps=steps, model=model, ranks=1, root=None, out=scratch), seed=seed)
    if run_and_show(settings, json_output=False) != 0:
        raise NotRecorded(f"the demo failed; its report and logs are in {settings.out}")
    folder.mkdir(parents=True, exist_ok=True)
    with open(settings.root, run=settings.run) as registry:
        written = list(_write(registry, folder, range(steps + 1 - states, steps + 1)))
    shutil.rmtree(scratch)
    return written


def _write(registry: Registry, folder: Path, versions: range) -> Iterator[Path]:
    for version in versions:
        # Tied names are one tensor, and count once in a state.
        model = registry.load(version, framework="torch")
        tensors = {id(tensor): (name, tensor) for name, tensor in model.items()}
        path = folder / f"step-{version:03d}.safetensors"
        save_file(dict(tensors.values()), path)
        yield path
