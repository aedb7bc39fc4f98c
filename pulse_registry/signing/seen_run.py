"""What was seen of a run at any of its roots: the newest record, and the hashes of the last ones before it.

Roots that hold copies of a run have the same record 0, by whose hash this is found again. A root that ends at one of
these hashes tells the same story and is behind; one that has another record at such a number tells another story.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from pulse_registry.errors import CorruptObject
from pulse_registry.log.fold import sealed_hash
from pulse_registry.process.private_files import replace_file
from pulse_registry.signing.seen_folder import SeenFolder
from pulse_schemas import Schema
from pulse_schemas.base import Count, Hash, RunName

MOST_HASHES: Final = 4096
"""Records that a root may be behind by, and still be known for a copy."""
_FILE: Final = "run.json"


class SeenRun(Schema):
    """The newest record that was seen of a run, where, and the hashes of the last ones in order, its own at the end.

    ``hashes`` is one text, of 64 letters a record: it is read and written at each new record.
    """

    format: Literal["pulse-seen/2"] = "pulse-seen/2"
    run: RunName
    first: Hash
    url: str
    seq: Count
    record: str
    hashes: Annotated[str, Field(pattern=r"^([0-9a-f]{64})+$", max_length=MOST_HASHES * 64)]

    def hash_of(self, seq: int) -> str | None:
        """Return the hash of a record, None where it is not known."""
        end = len(self.hashes) - 64 * (self.seq - seq)
        return self.hashes[end - 64 : end] if 64 <= end <= len(self.hashes) else None


@dataclass(frozen=True, slots=True)
class Found:
    """Records that follow one another, as a reader has found them.

    Attributes:
        url: where.
        seq: number of the last one.
        record: its sealed bytes.
        hashes: of all of them, in order; the last one's at the end.
    """

    url: str
    seq: int
    record: bytes
    hashes: Sequence[str]


class RunMemory(SeenFolder):
    """Keeps what was seen of one run at all of its roots; processes may share it."""

    def __init__(self, folder: Path, run: str, first: str) -> None:
        """Prepare; no I/O yet.

        Args:
            folder: holds all runs of all registries.
            run: its name.
            first: the hash of its record 0.
        """
        super().__init__(folder / f"{run}-{first[:16]}", run)
        self._looked = True  # by the memory of the URL, whose folder lies beside this one
        self._first = first

    def newest(self) -> SeenRun | None:
        """Return what was seen, None if nothing ever was.

        Raises:
            CorruptObject: the file is damaged.
            InvalidArgument: the folder may not be used, or it or the file is not this user's alone.
            StoreUnavailable: it can't be read.
        """
        return self._checked(self.read(_FILE, SeenRun))

    def advance(self, found: Found) -> int | None:
        """Remember records; return the number of the first one that contradicts what is remembered: then nothing is.

        Raises:
            CorruptObject, InvalidArgument, StoreUnavailable: as ``newest``, or it can't be written.
        """
        with self.locked() as folder:
            known = self._checked(self.read_in(folder, _FILE, SeenRun))
            begin = found.seq - len(found.hashes) + 1
            if known is not None:
                for seq, new in enumerate(found.hashes, begin):
                    if known.hash_of(seq) not in (None, new):
                        return seq
                if known.seq >= found.seq:
                    return None
            hashes = "".join(found.hashes)
            if known is not None and begin <= known.seq + 1:
                hashes = known.hashes + "".join(found.hashes[known.seq + 1 - begin :])
            seen = SeenRun(
                run=self._run,
                first=self._first,
                url=found.url,
                seq=found.seq,
                record=found.record.decode(),
                hashes=hashes[-64 * MOST_HASHES :],
            )
            replace_file(folder, _FILE, seen.seal())
            return None

    def _checked(self, seen: SeenRun | None) -> SeenRun | None:
        if seen is None:
            return None
        if (seen.run, seen.first) != (self._run, self._first):
            raise CorruptObject(f"{self.folder / _FILE} is of run {seen.run!r} that begins with {seen.first}")
        if sealed_hash(seen.record.encode()) != seen.hashes[-64:]:
            raise CorruptObject(f"{self.folder / _FILE}: its newest record is not the one of the last hash")
        return seen
