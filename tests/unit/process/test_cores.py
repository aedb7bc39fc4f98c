"""How many cores a process may use, from what the kernel's files say, and what a registry makes of it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.process import cores
from pulse_registry.process.cores import cpu_quota, usable_cores
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import MemoryStore

V2 = {"/proc/self/cgroup": "0::/kube/pod1\n"}
V1 = {"/proc/self/cgroup": "9:memory:/x\n4:cpu,cpuacct:/docker/1\n0::/docker/1\n"}


def v1(mounted: str, group: str, quota: int, period: int = 100_000) -> dict[str, str]:
    folder = f"/sys/fs/cgroup/{mounted}{group}"
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (V2, None),
        (V2 | {"/sys/fs/cgroup/kube/pod1/cpu.max": "max 100000\n"}, None),
        (V2 | {"/sys/fs/cgroup/kube/pod1/cpu.max": "800000 100000\n"}, 8.0),
        (V2 | {"/sys/fs/cgroup/kube/pod1/cpu.max": "max 100000", "/sys/fs/cgroup/kube/cpu.max": "150000 100000"}, 1.5),
        (V2 | {"/sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4.0),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ({"/proc/self/cgroup": "0::/../../pod\n", "/sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        (V1 | v1("cpu,cpuacct", "/docker/1", -1), None),
        (V1 | v1("cpu,cpuacct", "/docker/1", 250_000), 2.5),
        (V1 | v1("cpu", "/docker/1", 300_000) | v1("cpu", "", 200_000), 2.0),
        (V2 | {"/sys/fs/cgroup/kube/pod1/cpu.max": "\n"}, None),
        (V2 | {"/sys/fs/cgroup/kube/pod1/cpu.max": "100000 0\n"}, None),
    ],
)
def test_the_least_limit_of_a_group_and_those_above_it_counts(files: dict[str, str], quota: float | None):
    assert cpu_quota(files.get) == quota


@pytest.mark.parametrize(("quota", "usable"), [(None, 6), (0.5, 1), (2.5, 3), (8.0, 6)])
def test_a_quota_is_rounded_up_and_affinity_bounds_it(
    quota: float | None, usable: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(os, "cpu_count", lambda: 192)
    monkeypatch.setattr(cores, "own_quota", lambda: quota)
    assert usable_cores() == usable


def test_this_process_may_use_some_core():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def pool_sizes(threads: int | None) -> dict[str, int]:
    """Push and pull with a registry, and return how many threads it asked for, by name."""
    asked: dict[str, int] = {}
    real = Dependencies().threads

    def make(count: int, name: str):
        asked[name] = count
        return real(count, name)

    model = {"w": np.zeros(8, np.uint16)}
    around = Dependencies(threads=make)
    with Registry(
        MemoryStore("cores"),
        "run",
        Options(compute=ComputeOptions(backend="reference", threads=threads)),
        dependencies=around,
    ) as registry:
        registry.push(0, model)
        registry.pull(into=model)
    return asked


def test_a_registry_computes_on_the_threads_that_it_was_given():
    assert pool_sizes(3)["pulse"] == 3


def test_a_registry_that_was_given_none_takes_the_cores_that_it_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7})
    monkeypatch.setattr(os, "cpu_count", lambda: 192)
    monkeypatch.setattr(cores, "own_quota", lambda: None)
    assert pool_sizes(None)["pulse"] == 3


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_threads_that_are_no_number_from_1_on_are_refused(threads):
    with pytest.raises(InvalidArgument, match="threads"):
        Registry(MemoryStore("cores"), "run", Options(compute=ComputeOptions(threads=threads)))
