"""One process of the fuzzer: one target under atheris, until its time is over or it finds something.

    python -m tests.security.fuzz.worker TARGET FIGURES [libFuzzer's options and folders ...]

It begins by instrumenting the library, and only then imports what uses it. FIGURES is a JSON file that is written again
and again: the end of a fuzzing process belongs to libFuzzer.
"""

from __future__ import annotations

import ast
import json
import logging
import random
import resource
import sys
import time
from pathlib import Path

import atheris

_EVERY_S = 0.5
_BLIND = frozenset({"numba", "llvmlite", "triton"})
"""What these compile is not Python's byte code: instrumented, it would not compile."""


def main(arguments: list[str]) -> None:
    """Fuzz; does not return."""
    name, figures, *options = arguments
    logging.disable(logging.CRITICAL)  # what is refused is logged, too
    ours = ["pulse_schemas", "pulse_registry", "pulse_kernels", "pulse_server", "uvicorn.protocols"]
    with atheris.instrument_imports(include=ours, exclude=_compiled()):
        from tests.security.fuzz.targets import TARGETS

        target = TARGETS[name]()
    from tests.security.fuzz.target import MEMORY, SECONDS

    count = dict.fromkeys(("executions", "accepted", "refused"), 0)
    slowest, written_at, began = 0.0, 0.0, time.monotonic()
    for seed in target.seeds:
        target.check(seed)  # what is compiled or loaded on first use is no part of what an input costs
    peak = start = _peak_bytes()

    def one(data: bytes) -> None:
        nonlocal slowest, peak, written_at
        cpu, before = time.process_time(), peak
        accepted = target.check(data)
        seconds, peak = time.process_time() - cpu, _peak_bytes()
        if seconds > SECONDS:
            raise TimeoutError(f"{seconds:.2f} s for an input of {len(data)} bytes")
        if peak - before > MEMORY:
            raise MemoryError(f"{peak - before} bytes for an input of {len(data)} bytes")
        slowest = max(slowest, seconds)
        count["executions"] += 1
        count["accepted" if accepted else "refused"] += 1
        now = time.monotonic()
        if now - written_at > _EVERY_S:
            written_at = now
            told = {**count, "slowest_s": slowest, "peak_growth_bytes": peak - start, "seconds": now - began}
            Path(figures).write_text(json.dumps(told))

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if data and rng.randrange(3) == 0:
            return bytes(atheris.Mutate(data, max_size))
        return target.mutate(data, rng)[:max_size]

    atheris.Setup([sys.argv[0], f"-max_len={target.max_len}", *options], one, custom_mutator=mutate)
    atheris.Fuzz()


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _compiled() -> list[str]:
    """Return the kernels' modules that a compiler takes: those that import one, or such a module."""
    folder = Path(__file__).resolve().parents[3] / "kernels"
    imports = {
        ".".join(path.relative_to(folder).with_suffix("").parts): _imported(path)
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }
    found = {name for name in imports if ".numba_" in name}  # some hold what others compile
    while more := {name for name, names in imports.items() if names & (_BLIND | found)} - found:
        found |= more
    return sorted(found)


def _imported(path: Path) -> set[str]:
    """Return what a module imports as it is imported itself: modules in full, and the packages that they are of."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, node.module.partition(".")[0]}
        elif isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
    return names


if __name__ == "__main__":
    main(sys.argv[1:])
