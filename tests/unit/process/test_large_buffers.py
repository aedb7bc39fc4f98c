"""Large buffers are mappings of their own, which leave a process when they are freed, also after the first ones."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
from pulse_registry.process.large_buffers import return_large_buffers

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usm fsm uord ford keep".split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
if sys.argv[1] == "returned":
    assert return_large_buffers()
del [bytes(20 << 20)][:]  # glibc then takes smaller ones from its heap, by itself
before = mallinfo().hblks
kept = bytes(8 << 20)
print(mallinfo().hblks - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="of the GNU C library, from 2.33 on")
@pytest.mark.parametrize(("how", "mappings"), [("returned", 1), ("by itself", 0)])
def test_a_buffer_is_a_mapping_of_its_own_after_larger_ones_were_freed(how: str, mappings: int) -> None:
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == mappings
