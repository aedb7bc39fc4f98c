"""Peak extra memory of pushes and of pulls in place, each in a fresh process: ``python -m benchmarks.memory``.

The process first loads what it needs to hold anyway (the model and the trainer's shadow, or the worker's weights), does
the same on something small so that all code is loaded, and gives free memory back. Then the kernel's high-water mark of
resident memory is reset; what it reads after three pushes or pulls, less what was resident before, is the extra. A
thread reads the anonymous and the file-backed part of it meanwhile. The process runs with an allocator that gives every
freed array back to the system at once, so that nothing hides in memory that was resident already.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.push_pull import warm_up
from benchmarks.states import Live, States, load_states
from pulse_registry import PushOptions, open
from pulse_registry.format.patch_coding import CoderChoice

STEPS = 3
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_MAX_": "1000000"}
"""glibc: arrays from 64 KiB on are mapped, and unmapped when freed."""
_EVERY_SECONDS = 0.001


@dataclass(slots=True)
class Extra:
    """Bytes above what was resident ``before``; ``reset``: the kernel's mark could be reset (else: sampled)."""

    before: int = 0
    peak: int = 0
    anonymous: int = 0
    file_backed: int = 0
    reset: bool = False
    samples: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def watched() -> Iterator[Extra]:
    """Fill an ``Extra`` with what the body takes at its peak."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    before = _status()
    extra = Extra(before["VmRSS"])
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        extra.reset = True

    def sample() -> None:
        while not extra._stop.wait(_EVERY_SECONDS):
            now = _status()
            extra.samples += 1
            extra.peak = max(extra.peak, now["VmRSS"] - before["VmRSS"])
            extra.anonymous = max(extra.anonymous, now["RssAnon"] - before["RssAnon"])
            extra.file_backed = max(extra.file_backed, now["RssFile"] - before["RssFile"])

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield extra
    finally:
        extra._stop.set()
        thread.join()
        if extra.reset:
            extra.peak = max(extra.peak, _status()["VmHWM"] - before["VmRSS"])


def measure_memory(
    states: States, folder: Path, root: Path, coders: tuple[CoderChoice, ...]
) -> dict[str, dict[str, Any]]:
    """Measure each coder's pushes and pulls, each in a process of its own.

    Args:
        states: for their size.
        folder: the first states as safetensors files.
        root: where ``measure_push_pull`` left its runs.
        coders: to measure.
    """
    if sys.platform != "linux":
        return {}
    found = {}
    for coder in coders:
        for what in ("push", "pull"):
            command = [sys.executable, "-m", "benchmarks.memory", what, coder, str(folder), str(root)]
            ran = subprocess.run(
                command,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[1],
                env={**os.environ, **_ALLOCATOR},
            )
            extra = json.loads(ran.stdout)
            shares = {
                f"{key}_share": round(extra[key] / states.nbytes, 4) for key in ("peak", "anonymous", "file_backed")
            }
            found[f"{what} {coder}"] = {**extra, **shares}
    return found


def _push(coder: CoderChoice, folder: Path, root: Path) -> Extra:
    states = load_states(folder)
    with (
        tempfile.TemporaryDirectory(dir=root) as own,
        open(own, run="bench", push=PushOptions(coder=coder, keyframe_share=1e9)) as registry,
    ):
        live = Live(states)
        model = live.model()
        registry.push(0, model)
        with watched() as extra:
            for step in range(1, len(states.steps) + 1):
                live.go(step)
                registry.push(step, model)
        return extra


def _pull(coder: CoderChoice, folder: Path, root: Path) -> Extra:
    states = load_states(folder)
    with open(str(root / coder), run="bench", create=False) as registry:
        weights = Live(states).model()
        registry.pull(0, into=weights)
        with watched() as extra:
            for version in range(1, len(states.steps) + 1):
                registry.pull(version, into=weights)
        return extra


def _status() -> dict[str, int]:
    fields = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) << 10 for name, value in fields if value.endswith("kB")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the peak extra memory of pushes or pulls in this process.")
    parser.add_argument("what", choices=("push", "pull"))
    parser.add_argument("coder")
    parser.add_argument("folder", type=Path)
    parser.add_argument("root", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as small:
        warm_up(Path(small))
    began = time.perf_counter()
    extra = (_push if args.what == "push" else _pull)(args.coder, args.folder, args.root)
    json.dump(
        {
            "peak": extra.peak,
            "anonymous": extra.anonymous,
            "file_backed": extra.file_backed,
            "kernel_mark": extra.reset,
            "samples": extra.samples,
            "seconds": round(time.perf_counter() - began, 3),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
