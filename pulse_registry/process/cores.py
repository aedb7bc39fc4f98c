"""How many cores this process may use: what its CPU affinity and its control groups' quotas leave of the machine's."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from pulse_registry.errors import InvalidArgument

_V1_FOLDERS = ("cpu,cpuacct", "cpu")
"""Where the controller is mounted, as distributions do it."""


def usable_cores() -> int:
    """Return how many cores this process may use, at least one. Quotas are read once a process: that takes files."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = own_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


@functools.cache
def own_quota() -> float | None:
    """Return the cores that the control groups of this process allow, as its files said first; None: no limit."""
    return cpu_quota(_text)


def checked_threads(threads: int | None) -> int:
    """Return how many threads are to compute: as many as were asked for, or one for each core that may be used.

    Raises:
        InvalidArgument: it is no number from 1 on.
    """
    if threads is None:
        return usable_cores()
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise InvalidArgument(f"threads is {threads!r}; it is a number from 1 on, or None for one a core")
    return threads


def cpu_quota(text: Callable[[str], str | None]) -> float | None:
    """Return the cores' worth of time that control groups, of version 1 or 2, leave to this process; None: no limit.

    A group's limit holds for all below it, so the least one from this process's group up to the root counts. In a
    container, the path that the kernel names may lie outside of what is mounted: the root is then the container's own.

    Args:
        text: returns a file's text; None where there is no such file.
    """
    limits = []
    for line in (text("/proc/self/cgroup") or "").splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            limits += [_v2_limit(text(f"{folder}/cpu.max")) for folder in _folders("/sys/fs/cgroup", group)]
        elif "cpu" in controllers.split(","):
            limits += [
                _ratio(text(f"{folder}/cpu.cfs_quota_us"), text(f"{folder}/cpu.cfs_period_us"))
                for mounted in _V1_FOLDERS
                for folder in _folders(f"/sys/fs/cgroup/{mounted}", group)
            ]
    return min((limit for limit in limits if limit is not None), default=None)


def _folders(root: str, group: str) -> Iterator[str]:
    """Yield the folders of a group and of all above it."""
    path = PurePosixPath(group)
    for above in (path, *path.parents):
        yield f"{root}/{above}".rstrip("/").replace("//", "/")


def _v2_limit(text: str | None) -> float | None:
    quota, _, period = (text or "").strip().partition(" ")
    return _ratio(quota, period)


def _ratio(quota: str | None, period: str | None) -> float | None:
    """Return how many cores a quota is; it is ``max``, or -1, where there is none."""
    try:
        of, each = int(quota or ""), int(period or "")
    except ValueError:
        return None
    return of / each if of > 0 and each > 0 else None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
