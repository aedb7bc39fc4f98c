"""Memory of a node: bytes that one process makes, and others of the same user and host map without a copy.

It has no name in any folder (it is a memfd), so that nothing is left of it once no process has it any more, however
they ended; and no limit but that of the host's memory, where /dev/shm of a container has 64 MiB.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from pulse_registry.errors import InvalidArgument

Memory = npt.NDArray[np.uint8]
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES: Final = "/proc/self/ns/pid"


def node() -> bytes:
    """Return what is the same for processes that can map each other's memory; where none can, for no two of them."""
    if not hasattr(os, "memfd_create"):
        return f"{os.uname().nodename} {os.getpid()}".encode()
    return f"{_BOOT_ID.read_text().strip()} {os.stat(_PROCESSES).st_ino} {os.geteuid()}".encode()


class NodeMemory:
    """Memory that this process has made, of zeros at first.

    Attributes:
        cells: the bytes. They live as long as an array over them does, here or in another process.
        handle: what ``mapped`` takes, in another process, until ``seal`` is called, or this object is gone; empty:
            nobody else can map it.
    """

    def __init__(self, cells: Memory, descriptor: int | None) -> None:
        """Take memory, and what others map it by; see ``reserve``."""
        self.cells = cells
        self.handle = b"" if descriptor is None else b"%d %d %d" % (os.getpid(), descriptor, len(cells))
        self._seal = weakref.finalize(self, os.close, descriptor) if descriptor is not None else None

    @classmethod
    def reserve(cls, nbytes: int) -> Self:
        """Make memory, all of which is there: not, as usual, once it is written.

        Raises:
            InvalidArgument: the host does not have so much.
        """
        size = max(1, nbytes)  # none at all can't be mapped
        if not hasattr(os, "memfd_create"):
            return cls(_over(mmap.mmap(-1, size), nbytes), None)
        if size > (free := available()):
            raise InvalidArgument(f"{_asked(nbytes)}; {free:,} are free")
        descriptor = os.memfd_create("pulse", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, size)
            cells = _over(mmap.mmap(descriptor, size), nbytes)
        except OSError as error:
            os.close(descriptor)
            raise InvalidArgument(f"{_asked(nbytes)}: {error}") from error
        return cls(cells, descriptor)

    def seal(self) -> None:
        """Let nobody else map it from here on; whoever has, keeps it. Idempotent."""
        if self._seal is not None:
            self._seal()


def mapped(handle: bytes) -> Memory:
    """Return another process's memory, only to be read.

    Raises:
        InvalidArgument: it can't be mapped.
    """
    process, descriptor, nbytes = map(int, handle.split())
    try:
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _over(mmap.mmap(opened, max(1, nbytes), prot=mmap.PROT_READ), nbytes)
        finally:
            os.close(opened)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the memory of process {process}, on this host, can't be mapped: {error}") from error


def _over(memory: mmap.mmap, nbytes: int) -> Memory:
    return np.frombuffer(memory, np.uint8)[:nbytes]


def available(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that are free for new memory, without swapping: of the host, and of a container's limit.

    Whoever takes more is killed, and hears of nothing.
    """
    free = _fields(meminfo)["MemAvailable:"] << 10
    with suppress(OSError):  # no cgroup of version 2, or the host's own
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            used, cached = int((cgroup / "memory.current").read_text()), _fields(cgroup / "memory.stat")
            free = min(free, int(limit) - used + cached["inactive_file"])
    return free


def _fields(file: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines are a name and a number."""
    return {name: int(number) for name, number, *_ in map(str.split, file.read_text().splitlines())}


def _asked(nbytes: int) -> str:
    return f"{nbytes:,} bytes of memory are needed on this host, for its ranks to share"
