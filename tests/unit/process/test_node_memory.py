"""Memory of a node: other processes map it, nothing else can, and nothing of it is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.process import node_memory
from pulse_registry.process.node_memory import NodeMemory, mapped, node

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd")

READS = "import sys; from pulse_registry.process.node_memory import mapped, node; memory = mapped(sys.argv[1].encode())"


def in_another_process(handle: bytes, does: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{READS}; {does}", handle], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_another_process_reads_what_this_one_writes() -> None:
    made = NodeMemory.reserve(5000)
    assert not made.cells.any()
    made.cells[4998:] = 7, 9
    other = in_another_process(made.handle, "print(len(memory), memory[4997:].tolist(), node())")
    assert other.stdout.strip() == f"5000 [0, 7, 9] {node()!r}", other.stderr


@pytest.mark.slow
def test_another_process_can_not_write_it() -> None:
    made = NodeMemory.reserve(8)
    assert "read-only" in in_another_process(made.handle, "memory[0] = 1").stderr
    assert not made.cells.any()


def test_once_sealed_nobody_else_maps_it_and_who_has_keeps_it() -> None:
    made = NodeMemory.reserve(8)
    seen = mapped(made.handle)
    made.seal()
    made.seal()
    with pytest.raises(InvalidArgument, match=f"memory of process {os.getpid()}, on this host, can't be mapped"):
        mapped(made.handle)
    made.cells[3] = 5
    assert seen.tolist() == [0, 0, 0, 5, 0, 0, 0, 0]


def test_nothing_is_left_of_it_once_no_array_has_it() -> None:
    def here() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:pulse" in line for line in maps)

    gc.collect()
    before = here()
    made = NodeMemory.reserve(100)
    cells, handle = made.cells[10:20], made.handle
    del made  # nor can it be mapped from here on
    with pytest.raises(InvalidArgument, match="can't be mapped"):
        mapped(handle)
    assert here() == before + 1
    del cells
    gc.collect()
    assert here() == before


def test_none_at_all_is_memory_too() -> None:
    made = NodeMemory.reserve(0)
    assert len(mapped(made.handle)) == len(made.cells) == 0


def test_more_than_is_free_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_memory, "available", lambda: 999)
    with pytest.raises(InvalidArgument, match=r"1,000 bytes of memory .*; 999 are free"):
        NodeMemory.reserve(1000)
    NodeMemory.reserve(999)


def test_what_is_free_is_that_of_the_host_and_of_the_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:  1000 kB\nHugePages_Total:  0\n")
    assert node_memory.available(meminfo, tmp_path) == 1_024_000
    (tmp_path / "memory.max").write_text("max\n")
    assert node_memory.available(meminfo, tmp_path) == 1_024_000
    for name, text in {"max": "900000", "current": "500000", "stat": "anon 1\ninactive_file 100000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert node_memory.available(meminfo, tmp_path) == 500_000
    assert 0 < node_memory.available() < 1 << 60
