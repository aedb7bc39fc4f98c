"""The cache of compiled loops on disk: its folder, and whether it is filled, found without importing the compiler."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pulse_kernels.permissions import other_writers

_PACKAGE: Final = Path(__file__).absolute().parent / "loops"
"""Whose loops they are: numba names its folders after this one."""


def loops_folder() -> Path | None:
    """Return the first of numba's places for this package's loops that can be written, as numba takes it.

    It is made if need be, for this user alone. They are NUMBA_CACHE_DIR, the package's own folder and the user's; None
    where none of them can be written, so that every process compiles for itself.
    """
    return next(filter(_writable, _places()), None)


def loops_cached(folder: Path) -> bool:
    """Return whether a folder holds loops at all: of which release and processor they are, numba alone can tell."""
    return any(folder.glob("*.nbi"))


def loops_exposed(folder: Path) -> str | None:
    """Say how another user could change the loops in numba's folder for them, which are code; None if none could.

    Whoever may write the package's own folder may write here too: their code runs anyway.
    """
    try:
        return other_writers(folder, (".nbi", ".nbc"), _PACKAGE)
    except OSError as error:
        return f"{folder} can't be looked at: {error.strerror or error}"


def _places() -> Iterator[Path]:
    name = f"{_PACKAGE.name}_{hashlib.sha1(str(_PACKAGE).encode(), usedforsecurity=False).hexdigest()}"
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(named) / name
    yield _PACKAGE / "__pycache__"
    yield _user_folder() / "numba" / name


def _user_folder() -> Path:
    if sys.platform == "darwin":
        return Path("~/Library/Caches").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def _writable(folder: Path) -> bool:
    """Return whether a file can be made in a folder, which is made if need be; a read-only root says so here alone."""
    try:
        if folder.parent == _PACKAGE:
            folder.mkdir(exist_ok=True)  # as Python makes it, for all who import the package
        else:
            for made in (*reversed(folder.parents), folder):
                made.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
