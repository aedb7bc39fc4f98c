"""Shared log: the ranks' one view of a run's log. The coordinator appends, and hands the others what it appended.

So a record costs one request and not one a rank. A record that was handed over is checked like one that was read: its
seal, its number, its place in the chain, and its signature where the reader pins keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pulse_registry.errors import Conflict, CorruptObject
from pulse_registry.log import LogReader, LogWriter, RunState, sealed_hash
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.vote import Attempt
from pulse_schemas import Record, unseal_record

_MOST_HANDED: Final = 64
"""Records of others that the coordinator hands over with its own; ranks read more than that by themselves."""
_BETWEEN: Final = b"\n"  # a sealed record, canonical JSON, has none


class SharedLog:
    """The log of a run whose model is sharded. Each method is a collective.

    Attributes:
        writer: of the log; only the coordinator's writes.
    """

    def __init__(self, writer: LogWriter, peers: Peers) -> None:
        """Take this rank's writer, and the ranks; no I/O yet."""
        self.writer, self._peers = writer, peers
        self._handed = -1  # number of the newest record that the coordinator knows all ranks to have

    @property
    def reader(self) -> LogReader:
        """What reads the run, on this rank."""
        return self.writer.reader

    def begin(self, check: Callable[[RunState], None], then: Callable[[RunState], None] = lambda _: None) -> int:
        """Begin the job's term, and return the number of the newest version, on all ranks; -1: there is none.

        Args:
            check: is called at the coordinator with the run's state, before this term's record is written.
            then: is called there after it.

        Raises:
            PulseError: on all ranks: what ``check`` raised, or what the log or the store says on one of them.
        """
        attempt, here = Attempt(self._peers), self._peers.rank == COORDINATOR

        def begin() -> bytes:
            check(self.reader.refresh())
            self.writer.begin()
            then(self.reader.refresh())
            state = self.reader.refresh()
            self._handed = state.seq
            return b"%d" % (-1 if state.latest is None else state.latest.version)

        said = attempt.run(begin, b"") if here else b""
        said = self._peers.broadcast(said if here else None, "newest version")
        attempt.agree("term")
        version = int(said)
        attempt.run(lambda: _look(self.reader, version), None)
        attempt.agree("log")
        return version

    def check_term(self) -> None:
        """Check that the job's term is the newest.

        Raises:
            Fenced: on all ranks: a newer one has begun.
        """
        attempt = Attempt(self._peers)
        if self._peers.rank == COORDINATOR:
            attempt.run(self.writer.begin, -1)
        attempt.agree("newest term")

    def append(self, attempt: Attempt, write: Callable[[], Record], write_id: str) -> Record:
        """Append a record at the coordinator, and return it on all ranks, whose readers have folded it.

        Args:
            attempt: this rank's; the record is written only if nothing has failed at the coordinator.
            write: appends it.
            write_id: of the record.

        Raises:
            Conflict: on all ranks: another write has its place.
            PulseError: on all ranks, what went wrong on one.
        """
        here = self._peers.rank == COORDINATOR
        said = attempt.run(lambda: self._appended(write()), b"") if here else b""
        said = self._peers.broadcast(said if here else None, "record")
        attempt.agree("append")
        nothing: list[Record] = []
        found = attempt.run(lambda: [self._folded(said, write_id)], nothing)
        attempt.agree("appended")
        return found[0]

    def _appended(self, record: Record) -> bytes:
        """Return a record as the log holds it, after those of others that the ranks have not been told of."""
        first, self._handed = self._handed + 1, record.seq
        before: list[bytes] = []
        for seq in range(first, record.seq) if record.seq - first <= _MOST_HANDED else ():
            found = self.reader.read(seq)
            if found is None:
                raise CorruptObject(f"run {record.run!r}: record {seq} is gone, and record {record.seq} is there")
            before.append(found[1])
        return _BETWEEN.join([*before, self.writer.sealed(record)])

    def _folded(self, said: bytes, write_id: str) -> Record:
        """Fold what the coordinator handed over; without a request, unless it does not follow what this rank knows."""
        *before, sealed = said.split(_BETWEEN)
        for one in (*before, sealed):
            state = self.reader.accept(one)
        record = unseal_record(sealed)
        other = state.seq == record.seq and state.last != sealed_hash(sealed)
        if other or record.write_id != write_id or state.seq < record.seq:
            raise Conflict(
                f"run {record.run!r}: rank {COORDINATOR} handed over record {record.seq} of write {record.write_id}, "
                f"which is not what this rank's log has there, or not the one of write {write_id}"
            )
        return record


def _look(reader: LogReader, version: int) -> None:
    """Read what is new in the log, and check that there is a version; -1: nothing."""
    state = reader.refresh()
    if version >= 0:
        state.version(version)
