"""Newest record seen of a run at one URL, sealed, kept in a file from one process to the next.

A store that says less than that later was rolled back; one that says something else at its number tells two stories.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from blake3 import blake3

from pulse_registry.errors import CorruptObject
from pulse_registry.process import environment
from pulse_registry.process.private_files import replace_file
from pulse_registry.signing.seen_folder import SeenFolder
from pulse_schemas import Schema

_FILE: Final = "newest.json"


class Seen(Schema):
    """The newest record that was seen of a run at a URL; ``record`` is its sealed bytes."""

    format: Literal["pulse-seen/1"] = "pulse-seen/1"
    url: str
    run: str
    seq: int
    record: str


class Memory(SeenFolder):
    """Keeps the newest record that was seen of one run at one URL; processes may share it."""

    def __init__(self, folder: Path, url: str, run: str) -> None:
        """Prepare; no I/O yet. ``folder`` holds all runs of all registries."""
        super().__init__(folder / f"{run}-{blake3(url.encode()).hexdigest()[:16]}", run)
        self._url = url

    def newest(self) -> Seen | None:
        """Return the newest record that was seen, None if none ever was.

        Raises:
            CorruptObject: the file is damaged.
            InvalidArgument: the folder may not be used, or it or the file is not this user's alone.
            StoreUnavailable: it can't be read.
        """
        return self._checked(self.read(_FILE, Seen))

    def advance(self, seq: int, sealed: bytes) -> Seen | None:
        """Remember a record unless a newer one is remembered; return what is in the way: another record of this number.

        Raises:
            CorruptObject, InvalidArgument, StoreUnavailable: as ``newest``, or it can't be written.
        """
        with self.locked() as folder:
            known = self._checked(self.read_in(folder, _FILE, Seen))
            if known is not None and known.seq >= seq:
                return known if known.seq == seq and known.record.encode() != sealed else None
            seen = Seen(url=self._url, run=self._run, seq=seq, record=sealed.decode())
            replace_file(folder, _FILE, seen.seal())
            return None

    def _checked(self, seen: Seen | None) -> Seen | None:
        if seen is not None and (seen.url, seen.run) != (self._url, self._run):
            raise CorruptObject(
                f"{self.folder / _FILE} is of run {seen.run!r} of {seen.url}, not of {self._run!r} of {self._url}"
            )
        return seen


def state_folder(given_dir: Path | None, url: str) -> Path | None:
    """Return the folder that keeps what was seen of a registry: the one given, PULSE_STATE_DIR, or the user's (XDG).

    None for a registry in the process' own memory, which is new each time.
    """
    if given_dir is not None or url.startswith("memory:"):
        return given_dir
    given = environment.STATE_DIR.read()
    if given:
        return Path(given)
    base = environment.XDG_STATE_HOME.read()
    return (Path(base) if base else Path.home() / ".local" / "state") / "pulse-registry"
