"""Default folder for temporary files: on a disk if there is a choice, since they are as large as weights."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from pulse_registry.process import environment

_VARIABLES: Final = (environment.TMPDIR, environment.TEMP, environment.TMP)
_ON_DISK: Final = "/var/tmp"
"""Where temporary files outlive a restart, by the Filesystem Hierarchy Standard: so they are in no RAM."""
_IN_RAM: Final = frozenset({"tmpfs", "ramfs"})


def temporary_folder() -> Path:
    """Return the folder that the environment names, as `tempfile` takes it; else the system's, or /var/tmp if that one
    is in RAM and /var/tmp is not."""
    usual = tempfile.gettempdir()
    if any(variable.read() for variable in _VARIABLES) or not os.access(_ON_DISK, os.W_OK | os.X_OK):
        return Path(usual)
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Path(usual)
    in_ram = file_system(os.path.realpath(usual), mounts) in _IN_RAM
    return Path(_ON_DISK if in_ram and file_system(os.path.realpath(_ON_DISK), mounts) not in _IN_RAM else usual)


def file_system(path: str, mounts: str) -> str:
    """Return the type of the file system that a path is on, by the kernel's list of mounts; empty if it has none."""
    found, longest = "", -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").rstrip("/")
        if len(point) >= longest and (path == point or path.startswith(point + "/")):
            found, longest = fields[2], len(point)  # of two at one place, the later one lies on top
    return found
