"""Rank processes: the ranks of a benchmark, each a process of its own, forked from one that has imported torch.

The benchmark's own process starts that one, as a command of its module, and reads what rank 0 prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any


def told(module: str, *arguments: object) -> list[Any]:
    """Run ``python -m module ranks ...``, and return what its ranks 0 ``tell``, in order."""
    command = [sys.executable, "-m", module, "ranks", *map(str, arguments)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in said.splitlines()]


def tell(found: Any) -> None:
    """Print what rank 0 has found, for ``told``."""
    os.write(1, json.dumps(found).encode() + b"\n")


def fork_ranks(size: int, life: Callable[[int, str], None], *, pinned: bool = False) -> None:
    """Be all ranks: forks of this process, which imports torch; each joins a gloo group, and lives.

    Args:
        size: how many.
        life: what a rank does, given its number and a folder that all share.
        pinned: whether each rank keeps to a core of its own.

    Raises:
        SystemExit: a rank failed.
    """
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder:
        children = []
        for rank in range(size):
            child = os.fork()
            if not child:
                try:
                    if pinned:
                        os.sched_setaffinity(0, {_core(rank, size)})
                    _join(rank, size, folder)
                    life(rank, folder)
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        ends = [os.waitpid(child, 0)[1] for child in children]
    if any(ends):
        raise SystemExit("a rank failed")


def _core(rank: int, size: int) -> int:
    cores: Sequence[int] = sorted(os.sched_getaffinity(0))
    if len(cores) < size:
        raise SystemExit(f"{size} ranks want a core each, and there are {len(cores)}")
    return cores[rank]


def _join(rank: int, size: int, folder: str) -> None:
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    store = dist.FileStore(f"{folder}/meet", size)  # type: ignore[attr-defined,unused-ignore]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
