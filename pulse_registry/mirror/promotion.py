"""Promotion: a copy of a run becomes its home, planned, or because the home is lost.

Planned: copy ahead -> `move` at the source -> copy up to it -> prove the new home -> drop the mark. Each step may be
made again, so it may be killed anywhere and called again. Between the second and the last nobody can write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pulse_registry.errors import Conflict, Fenced, InvalidArgument, NotFound, PulseError
from pulse_registry.log import LogReader, LogWriter, NewId, RunState
from pulse_registry.log.guard import AnyRecord
from pulse_registry.log.home import moved, prove, proved_move
from pulse_registry.log.mirror_mark import drop_mark, read_mark
from pulse_registry.log.record_put import put_record
from pulse_registry.mirror.mirror import Copied, Mirror
from pulse_registry.outer.log import FOLDER, OuterLog
from pulse_registry.store import PrefixStore, Store
from pulse_schemas import HomeEntry, VersionEntry


@dataclass(frozen=True, slots=True)
class Site:
    """A run at one root.

    Attributes:
        url: of the root.
        store: scoped to the run.
        reader, writer, rounds: of its log, and of the log of its outer rounds.
    """

    url: str
    store: Store
    reader: LogReader
    writer: LogWriter
    rounds: OuterLog

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.reader.run


@dataclass(frozen=True, slots=True)
class Promoted:
    """What came of a promotion.

    Attributes:
        home: where the run lives now, as its log says.
        latest: its newest version there; None: it has none.
        moved: the newest version that it had there when it moved; None: none.
        copied: by this call.
    """

    home: HomeEntry
    latest: VersionEntry | None
    moved: VersionEntry | None
    copied: Copied


class Promotion:
    """Makes a copy of one run its home; for one thread."""

    def __init__(self, destination: Site, source: Site, mirror: Callable[[], Mirror], new_id: NewId) -> None:
        """Prepare; no I/O yet.

        Args:
            destination: the copy: a bucket or a folder.
            source: the home that it is of, which need not answer if it is lost.
            mirror: makes what copies from the one to the other.
            new_id: gives write ids.

        Raises:
            InvalidArgument: the destination is a service, or the source itself.
        """
        if destination.store.gateway() is not None:
            raise InvalidArgument(f"{destination.url} is a service: a copy is promoted in the bucket itself")
        if source.store.url == destination.store.url:
            raise InvalidArgument(f"{destination.url} is both: give the root that the run is to leave with --from")
        self._destination, self._source = destination, source
        self._mirror, self._new_id = mirror, new_id

    def planned(self) -> Promoted:
        """Move the run from its home, which answers, to the copy; no version is lost.

        Raises:
            NotFound: the source has no such run.
            Fenced: the source is not its home, or the destination was it, and is it no more. Nothing was done.
            Forked: the copy has records that the source has not: somebody else wrote to one of them. Nothing was done.
            CorruptObject: the source can't give all that is to be copied.
            Others as ``Mirror.step`` and ``LogWriter.append``; call again.
        """
        destination, source = self._destination, self._source
        state = source.reader.refresh()
        if state.seq < 0:
            raise NotFound(f"there is no run {source.run!r} in {source.url}")
        copied = Copied()
        if (home := self._begun(state)) is None:
            copied = self._copy()  # most of it, while writers go on; what can't be copied is told before they stop
            source.writer.move(destination.url, self._new_id())
            home = _home(source.reader)
        if proved_move(destination.store, destination.run) != home.move:
            source.rounds.move(home)
            copied = copied.and_then(self._copy())
            prove(destination.store, destination.run, home.move)
        elif (now := destination.reader.refresh().home) is not None and now.move != home.move:
            raise Fenced(moved(destination.run, now, destination.url))  # since then
        drop_mark(destination.store)
        return self._promoted(home, copied)

    def lost(self) -> Promoted:
        """Let the run go on at the copy, from what that has. The lost home is not asked: `fence` it once it is back.

        Raises:
            NotFound: the destination has no such run.
            InvalidArgument: it is the home already, and never was a copy; or the home is another root than the source.
            Conflict: another promotion came between; call again.
            Others as ``LogWriter.append``; call again.
        """
        destination = self._destination
        home = self._taken()
        destination.rounds.move(home, lost=True)
        drop_mark(destination.store)
        return self._promoted(home, Copied())

    def fence(self, home: HomeEntry) -> tuple[VersionEntry, ...]:
        """End the logs of the lost home, which is back; return the versions that it has beyond the copy, oldest first.

        Before anything else is done with it. Idempotent.

        Args:
            home: what `lost` returned.

        Raises:
            NotFound: the source has no such run.
            Others as ``LogWriter.append``; call again.
        """
        source = self._source
        state = source.reader.refresh()
        if state.seq < 0:
            raise NotFound(
                f"there is no run {source.run!r} in {source.url} to be fenced: if it comes back, promote it again, the "
                "same way, before anything else is started on it"
            )
        if state.home is None or state.home.move != home.move:
            found = self._destination.reader.read(home.seq)
            if found is None or not _goes_on(source.store, state.seq, state.last, *found):
                source.writer.move(home.to, home.move, lost=True)
        rounds = source.rounds.refresh()
        if rounds.start is not None and (rounds.home is None or rounds.home.move != home.move):
            there = self._destination.rounds.refresh().home
            record = None if there is None else self._destination.rounds.read(there.seq)
            outer = PrefixStore(source.store, FOLDER)
            if record is None or not _goes_on(outer, rounds.seq, rounds.last, *record):
                source.rounds.move(home, lost=True)
        fork = _first_other(source.reader, self._destination.reader, home.seq)
        return tuple(entry for entry in source.reader.refresh().versions_since(0) if entry.seq >= fork)

    def _begun(self, state: RunState) -> HomeEntry | None:
        """Return the move that an earlier call made; None where none did."""
        return state.home if state.home is not None and state.home.to == self._destination.url else None

    def _promoted(self, home: HomeEntry, copied: Copied) -> Promoted:
        state = self._destination.reader.refresh()
        backwards = map(state.find, reversed(range(len(state.versions))))
        before = (entry for entry in backwards if entry is not None and entry.seq < home.seq)
        return Promoted(home, state.latest, next(before, None), copied)

    def _copy(self) -> Copied:
        with self._mirror() as mirror:
            return mirror.catch_up()

    def _taken(self) -> HomeEntry:
        """Return the move by which the copy takes the run, which this call or an earlier one made."""
        site = self._destination
        state = site.reader.refresh()
        if state.seq < 0:
            raise NotFound(f"there is no run {site.run!r} in {site.url}: nothing goes on there")
        home = self._begun(state)
        if home is None or proved_move(site.store, site.run) != home.move:  # or of long ago, and copied since
            if state.home is None and read_mark(site.store) is None:
                raise InvalidArgument(f"run {site.run!r}: {site.url} is no copy of it, and takes writers as it is")
            if state.home is not None and state.home.to not in (self._source.url, site.url):
                raise InvalidArgument(
                    f"run {site.run!r}: record {state.home.seq} moved it to {state.home.to}, and not to "
                    f"{self._source.url}: if that root is lost, give it with --from"
                )
            move = self._new_id()
            prove(site.store, site.run, move)  # first: by that, a later call knows whose move it finds
            site.writer.move(site.url, move, lost=True)
            home = _home(site.reader)
            if proved_move(site.store, site.run) != home.move:
                raise Conflict(f"run {site.run!r}: somebody else promotes it in {site.url} now: do it again")
        return home


def _home(reader: LogReader) -> HomeEntry:
    home = reader.state.home
    if home is None:
        raise PulseError(f"run {reader.run!r} has moved, and its log does not say so: this is a defect, report it")
    return home


def _goes_on(store: Store, seq: int, last: str | None, record: AnyRecord, sealed: bytes) -> bool:
    """Append the very record by which the copy has gone on, if it follows: then the lost log is no fork of it."""
    return record.seq == seq + 1 and record.previous == last and put_record(store, record.seq, sealed)


def _first_other(one: LogReader, two: LogReader, last: int) -> int:
    """Return the first number up to ``last`` at which two logs differ, or one ends; ``last + 1`` if none."""
    low, high = 0, last + 1
    while low < high:
        middle = (low + high) // 2
        if (found := one.read(middle)) is not None and found == two.read(middle):
            low = middle + 1
        else:
            high = middle
    return low
