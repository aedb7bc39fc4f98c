"""Permissions of folders with compiled code: which other users could change it, and so run code as this user."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def other_writers(folder: Path, suffixes: tuple[str, ...] = (), code: Path | None = None) -> str | None:
    """Say how another user could put something else into a folder, in its place, or into its files; None if none could.

    Root is trusted, and a group that is one user's own. So is who mounted a volume: Kubernetes opens those of a pod to
    all of its users, and there it has no others.

    Args:
        folder: that is there.
        suffixes: of the files in it that matter.
        code: a folder of code that runs anyway, whose writers may write here too.
    """
    folder = Path(os.path.realpath(folder))
    runs = None if code is None else os.stat(code)
    root = os.stat("/").st_uid  # not 0 where a container has not mapped it
    trusted = {0, root, os.geteuid()} if runs is None else {0, root, os.geteuid(), runs.st_uid}
    within = code is not None and folder.is_relative_to(os.path.realpath(code))
    for path in (folder,) if within else (folder, *folder.parents):
        found = path.stat()
        if path != folder and (found.st_mode & stat.S_ISVTX or (found.st_uid in (0, root) and path.is_mount())):
            continue
        why = _opened(found, trusted, runs if within else None)
        if why is not None:
            return f"{path} {why}"
    if suffixes:
        by_mode = bool(folder.stat().st_mode & 0o011)  # what nobody else may enter keeps them from its files
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffixes):
                    found = entry.stat(follow_symlinks=False)
                    why = "is no plain file"
                    if stat.S_ISREG(found.st_mode):
                        why = _opened(found, trusted, runs if within else None, by_mode=by_mode)
                    if why is not None:
                        name = (
                            entry.name if entry.name.isprintable() else ascii(entry.name)
                        )  # another may have chosen it
                        return f"{folder / name} {why}"
    return None


def _opened(
    found: os.stat_result, trusted: set[int], runs: os.stat_result | None, *, by_mode: bool = True
) -> str | None:
    """Say how others than those who are trusted may write something, None if they may not.

    What ``runs`` may be written by its group, or by all: they may write this too.
    """
    if found.st_uid not in trusted:
        return f"is of user {found.st_uid}"
    open_to = found.st_mode & 0o022 if by_mode else 0
    if runs is not None:
        open_to &= ~(runs.st_mode & (0o022 if found.st_gid == runs.st_gid else 0o002))
    if open_to & 0o002 or (open_to and not _is_own_group(found)):
        return f"may be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _is_own_group(found: os.stat_result) -> bool:
    """Tell whether a group is its user's own, as systems make one for each user: it has the user's name."""
    try:
        return pwd.getpwuid(found.st_uid).pw_name == grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        return False
