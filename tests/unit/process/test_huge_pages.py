"""Huge pages are asked for where a system has them, and not where a host takes free memory back."""

from __future__ import annotations

import errno
import functools
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from pulse_registry.process import huge_pages
from pulse_registry.process.huge_pages import ask, host_takes_back
from pulse_registry.pull.download import MemoryShard
from pulse_schemas import ObjectRef


class Refusing(mmap.mmap):
    """Memory whose system takes no advice."""

    def madvise(self, *arguments: int) -> None:
        self.asked.append(arguments)
        raise OSError(errno.EINVAL, "Invalid argument")

    @functools.cached_property
    def asked(self) -> list[tuple[int, ...]]:
        """What it was asked."""
        return []


@pytest.fixture
def takes_back(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> bool:
    """Whether the host takes memory back, as tests say."""
    told: bool = request.param
    monkeypatch.setattr(huge_pages, "host_takes_back", lambda: told)
    return told


def asked_for(address: int) -> bool:
    """Return whether the kernel was asked for huge pages at an address."""
    inside = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            first, *rest = line.split()
            if "-" in first and not first.endswith(":"):
                start, stop = (int(end, 16) for end in first.split("-"))
                inside = start <= address < stop
            elif inside and first == "VmFlags:":
                return "hg" in rest
    pytest.skip("this kernel says nothing of its mappings")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("0\n", True),
        ("9\n", True),
        ("10\n", True),
        ("11\n", False),
        ("-1\n", False),
        ("4294967295\n", False),
        ("?", False),
        (None, False),
    ],
)
def test_reports_of_free_memory_are_noticed(
    tmp_path: Path, text: str | None, reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "_LARGEST_ORDER", 10)  # of pages of 4 KiB
    least_order = tmp_path / "page_reporting_order"
    if text is not None:
        least_order.write_text(text)
    assert host_takes_back(least_order) is reported


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what was asked for")
@pytest.mark.parametrize("takes_back", [False, True], indirect=True)
def test_memory_is_asked_for_in_huge_pages_unless_a_host_takes_it_back(takes_back: bool) -> None:
    memory = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ask(memory)
    assert asked_for(np.frombuffer(memory, np.uint8).ctypes.data + (4 << 20)) is not takes_back


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what was asked for")
@pytest.mark.parametrize("takes_back", [False, True], indirect=True)
def test_a_shard_in_memory_lies_in_them(takes_back: bool) -> None:
    shard = MemoryShard(ObjectRef(key="model-0.safetensors", size=8 << 20, blake3="0" * 64))
    assert asked_for(np.frombuffer(shard.map(), np.uint8).ctypes.data + (4 << 20)) is not takes_back


@pytest.mark.parametrize("takes_back", [False], indirect=True)
def test_a_kernel_without_them_is_no_error(takes_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    memory = Refusing(-1, 8 << 20)
    ask(memory)
    assert memory.asked == [(14,)]


@pytest.mark.parametrize("takes_back", [False], indirect=True)
def test_a_system_that_has_none_is_not_asked(takes_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    memory = Refusing(-1, 8 << 20)
    ask(memory)
    assert memory.asked == []
