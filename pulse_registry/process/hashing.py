"""Hashing of whole objects, on some cores at a time."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from pulse_registry.process.cores import usable_cores

_MOST_THREADS: Final = 4
"""They hash faster than most disks read."""
LARGE: Final = 1 << 20
"""Bytes below which threads cost more than they save."""


def large_hasher(nbytes: int) -> blake3:
    """Return a hasher for so many bytes; threads that it takes end with it.

    They are not those of ``blake3.AUTO``, which a process shares: a child that is forked off has none of them, and
    would wait for them for ever.
    """
    return blake3(max_threads=1 if nbytes < LARGE else min(_MOST_THREADS, usable_cores()))
