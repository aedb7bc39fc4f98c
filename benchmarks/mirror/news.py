"""How soon a version that was pushed at the source is visible at the copy, while ``pulse mirror --follow`` goes on.

The clock of a version starts when its push returns, and stops when the copy's server has its record. What its bytes
take on the link is set off: the rest is counted in round trips.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.link import Link
from benchmarks.states import Live, States
from pulse_registry.format import keys
from pulse_registry.options import Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import Store, open_store
from tests.support.servers import S3Bucket

RUN = "bench"
_LOOK_S = 0.01
_HANG_S = 120.0


@dataclass(frozen=True, slots=True)
class News:
    """Of one version: its bytes, and seconds from its push to its record at the copy."""

    nbytes: int
    seconds: float

    def round_trips(self, link: Link) -> float:
        """Return how many round trips it took besides its transfer."""
        return (self.seconds - self.nbytes / (link.mbit * 125_000)) / (2 * link.delay_ms / 1e3)


def follow_versions(
    states: States, source: S3Bucket, through: S3Bucket, copy: S3Bucket, prefix: str, *, pause_s: float, seed: int
) -> list[News]:
    """Push all steps of the states while a mirror follows; return what became of each.

    Args:
        states: are pushed, one step a version.
        source: the trainer's bucket, without the link.
        through: the same bucket, through it.
        copy: the bucket of the copy.
        prefix: of both roots.
        pause_s: between two pushes, half as long to one and a half times as long, by ``seed``.
        seed: see there.
    """
    chance, live, found = random.Random(seed), Live(states), []
    options = Options(push=PushOptions(dtype="keep", keyframe_share=1e9))
    there = open_store(copy.url(prefix))
    with Registry(open_store(source.url(prefix)), RUN, options) as trainer:
        trainer.push(0, live.model())
        with following(through, copy, prefix):
            _await_record(there, trainer.state().seq)
            for step in range(1, len(states.steps) + 1):
                time.sleep(pause_s * chance.uniform(0.5, 1.5))
                live.go(step)
                pushed = trainer.push(step, live.model())
                began = time.perf_counter()
                _await_record(there, trainer.state().seq)
                found.append(News(pushed.nbytes, time.perf_counter() - began))
    return found


@contextmanager
def following(source: S3Bucket, copy: S3Bucket, prefix: str) -> Iterator[None]:
    """Run ``pulse mirror --follow``."""
    command = [sys.executable, "-c", "from pulse_start import main; raise SystemExit(main())", "mirror", "--follow"]
    command += [source.url(prefix), copy.url(prefix)]
    environment = os.environ | dict(source.server.environment)
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2]) as child:
        try:
            yield
            if child.poll() is not None:
                raise RuntimeError(f"pulse mirror --follow ended with {child.returncode}")
        finally:
            child.terminate()


def _await_record(store: Store, seq: int) -> None:
    key, until = f"{RUN}/{keys.record_key(seq)}", time.perf_counter() + _HANG_S
    while not store.exists(key):
        if time.perf_counter() > until:
            raise RuntimeError(f"the mirror has not copied {key} in {_HANG_S:.0f} s")
        time.sleep(_LOOK_S)
