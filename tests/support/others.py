"""Another user of the host, as far as tests can have one: files that are not ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NOBODY = 65534


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file, or a folder, be another user's; without root, it is so in what descriptors and names say of it."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
        return
    given = os.lstat(path)
    for name in ("fstat", "lstat"):
        real = getattr(os, name)

        def looked(what: int | Path, real: object = real) -> os.stat_result:
            found: os.stat_result = real(what)  # type: ignore[operator]
            if not os.path.samestat(found, given):
                return found
            return os.stat_result([*found[:4], found.st_uid + 1, *found[5:]])

        monkeypatch.setattr(os, name, looked)
