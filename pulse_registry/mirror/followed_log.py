"""A log as a mirror follows it: that of a run, or of its outer rounds, read at the source.

It says what there is to copy, record by record, and what the newest state has retired of it; what a record means
otherwise is nothing to a mirror.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys
from pulse_registry.log import LogReader, RunState, sealed_hash
from pulse_registry.log.guard import AnyRecord
from pulse_registry.log.read_ahead import follow
from pulse_registry.mirror.needs import Document, Unit, named, named_by_rounds, needed, needed_by_rounds
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.state import OuterState
from pulse_registry.store import Store
from pulse_schemas import AttachRecord, HomeEntry
from pulse_schemas.outer import CheckpointRecord, MergedRecord, unseal_outer_record

_KEPT_BYTES: Final = 16 << 20
"""Of records that one look finds: they are read once, to know the state, and put once their objects are there."""


@dataclass(frozen=True, slots=True)
class FollowedRecord:
    """A record at the source.

    Attributes:
        seq, sealed: its number and its bytes.
        units: what it names and the newest state has not retired.
        later: whether it only adds to what is there without it, so that its objects can come last.
    """

    seq: int
    sealed: bytes
    units: tuple[Unit, ...]
    later: bool


class FollowedLog(ABC):
    """One of the two logs of a run; for one thread at a time. Keys are below the run, numbers those of the log.

    Attributes:
        folder: in which it lies: "", or that of outer rounds, with its slash.
    """

    folder: str

    def __init__(self) -> None:
        """Prepare; no I/O yet."""
        self._recent: dict[int, tuple[AnyRecord, bytes]] = {}
        self._opened = False

    def refresh(self, goes_on: Callable[[FollowedRecord], bool] = lambda record: True) -> int:
        """Read what is new, or, where that is much, the first of it; return the number of the newest record known.

        Args:
            goes_on: is told of each record that comes after the first look, and tells whether the next one is looked
                for now.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        if not self._opened:
            self._open()
            self._opened = True
            return self.seq
        nbytes = 0
        for record, sealed in self._news():
            self._recent[record.seq] = record, sealed
            nbytes += len(sealed)
            if not goes_on(self._followed(record, sealed)) or nbytes > _KEPT_BYTES:
                break
        return self.seq

    def records(self, first: int) -> Iterator[FollowedRecord]:
        """Yield the records from one on, up to the newest one known, each of which names the one before.

        Raises:
            CorruptObject: one does not, or is gone.
            UnsupportedFormat, StoreUnavailable: as ``refresh``.
        """
        self._recent = {seq: found for seq, found in self._recent.items() if seq >= first}
        last: str | None = None
        number = first
        for record, sealed in follow(self._kept, first, ThreadPoolExecutor):
            if record.seq != number or (last is not None and record.previous != last):
                raise self._broken(number)
            last = sealed_hash(sealed)
            yield self._followed(record, sealed)
            if number == self.seq:
                break
            number += 1
        else:
            if number <= self.seq:
                raise self._broken(number)
        if last is not None and last != self.last:
            raise self._broken(self.seq)

    @property
    @abstractmethod
    def state(self) -> RunState | OuterState:
        """The newest state known."""

    @property
    def seq(self) -> int:
        """Number of the newest record known; -1 for none."""
        return self.state.seq

    @property
    def last(self) -> str | None:
        """BLAKE3 of the newest record's sealed bytes."""
        return self.state.last

    @property
    def home(self) -> HomeEntry | None:
        """Where it goes on since its newest move; None: it has never moved."""
        return self.state.home

    @abstractmethod
    def read(self, seq: int) -> tuple[AnyRecord, bytes] | None:
        """Fetch a record and its sealed bytes, without folding it; None if it is not there."""

    @abstractmethod
    def accept(self, sealed: bytes) -> None:
        """Fold the record that follows, which the caller has written; no I/O, if it is the next one."""

    @abstractmethod
    def needed(self) -> Iterator[Unit]:
        """Yield what the newest state needs."""

    @abstractmethod
    def needs(self, unit: Unit) -> bool:
        """Tell whether the newest state needs a unit."""

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _news(self) -> Iterator[tuple[AnyRecord, bytes]]: ...

    @abstractmethod
    def _units(self, record: AnyRecord) -> Iterator[Unit]: ...

    def _followed(self, record: AnyRecord, sealed: bytes) -> FollowedRecord:
        later = isinstance(record, AttachRecord | CheckpointRecord | MergedRecord)
        return FollowedRecord(record.seq, sealed, tuple(self._units(record)), later)

    def _kept(self, seq: int) -> tuple[AnyRecord, bytes] | None:
        return self._recent.get(seq) or self.read(seq)

    def _broken(self, seq: int) -> CorruptObject:
        key = self.folder + keys.record_key(seq)
        return CorruptObject(f"{key}: the source's log does not go on with it: it is missing, or another one")


class FollowedRun(FollowedLog):
    """The log of a run."""

    folder = ""

    def __init__(self, source: Store, run: str) -> None:
        """Prepare; no I/O yet. ``source`` is scoped to the run."""
        super().__init__()
        self._reader = LogReader(source, run, threads=ThreadPoolExecutor)

    @property
    def state(self) -> RunState:
        """The newest state known."""
        return self._reader.state

    def read(self, seq: int) -> tuple[AnyRecord, bytes] | None:
        """See FollowedLog."""
        return self._reader.read(seq)

    def accept(self, sealed: bytes) -> None:
        """See FollowedLog."""
        self._reader.accept(sealed)

    def needed(self) -> Iterator[Unit]:
        """See FollowedLog."""
        return needed(self.state)

    def needs(self, unit: Unit) -> bool:
        """See FollowedLog."""
        return unit.required if isinstance(unit.of, Document) else self.state.is_live(unit.key)

    def _open(self) -> None:
        self._reader.refresh()

    def _news(self) -> Iterator[tuple[AnyRecord, bytes]]:
        for record, sealed in follow(self._reader.read, self.seq + 1, None):
            self._reader.accept(sealed)
            yield record, sealed

    def _units(self, record: AnyRecord) -> Iterator[Unit]:
        return named(record, self.state)


class FollowedRounds(FollowedLog):
    """The log of a run's outer rounds."""

    folder = keys.OUTER

    def __init__(self, source: Store, run: str) -> None:
        """Prepare; no I/O yet. ``source`` is scoped to the run."""
        super().__init__()
        self._log = OuterLog(source, run, threads=ThreadPoolExecutor)

    @property
    def state(self) -> OuterState:
        """The newest state known."""
        return self._log.state

    def read(self, seq: int) -> tuple[AnyRecord, bytes] | None:
        """See FollowedLog."""
        return self._log.read(seq)

    def accept(self, sealed: bytes) -> None:
        """See FollowedLog."""
        self._log.fold(unseal_outer_record(sealed), sealed)

    def needed(self) -> Iterator[Unit]:
        """See FollowedLog; rounds that members no longer keep are left out."""
        return needed_by_rounds(self.state)

    def needs(self, unit: Unit) -> bool:
        """See FollowedLog."""
        found = keys.outer_object(unit.key.removeprefix(keys.OUTER))
        retired = self.state.retired
        return found is not None and (found[1] > retired or found == ("checkpoint", retired))

    def _open(self) -> None:
        self._log.refresh()

    def _news(self) -> Iterator[tuple[AnyRecord, bytes]]:
        for record, sealed in follow(self._log.read, self.seq + 1, None):
            self._log.fold(record, sealed)
            yield record, sealed

    def _units(self, record: AnyRecord) -> Iterator[Unit]:
        return named_by_rounds(record, self.state)
