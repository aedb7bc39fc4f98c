"""The guard of a reader that pins keys: signatures, the run, and what was seen before."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from pulse_registry.errors import Behind, Distrust, Untrusted
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.log.clock import Clock, utc_now
from pulse_registry.log.fold import sealed_hash
from pulse_registry.log.guard import AnyRecord
from pulse_registry.signing.keys import key_text, parse_key
from pulse_registry.signing.last_seen import Memory
from pulse_registry.signing.pinned_keys import ANY_MEMBER, OUTER, SNAPSHOT, Pin, Trust
from pulse_registry.signing.seen_run import MOST_HASHES, Found, RunMemory, SeenRun
from pulse_schemas import Countersignature, open_sealed
from pulse_schemas.outer import (
    CheckpointRecord,
    CloseRecord,
    ContributeRecord,
    DeleteRoundsRecord,
    JoinRecord,
    LeaveRecord,
    MergedRecord,
    RatesRecord,
    RestartRecord,
    RetireRoundsRecord,
    StartRecord,
)

_WAY_BACK: Final = "; for what is in the log already, see `pulse countersign`"


class PinGuard:
    """Judges one run's records for one reader; see ``Guard``."""

    def __init__(
        self,
        trust: Trust,
        url: str,
        run: str,
        folder: Path | None = None,
        *,
        events: Events | None = None,
        clock: Clock = utc_now,
        outer: bool = False,
    ) -> None:
        """Prepare to judge; no I/O yet.

        Args:
            trust: which keys may say what.
            url: of the registry.
            run: the run's name.
            folder: keeps what was seen; None remembers it for as long as the process runs.
            events: hear of a run that stands still.
            clock: the time that the newest record's age is measured by.
            outer: the records are those of the run's outer rounds.
        """
        self._trust, self._url, self._run = trust, url, run
        self._events, self._clock = events or Events(), clock
        self._a, self._what, self._way_back = ("an", "outer record", "") if outer else ("a", "record", _WAY_BACK)
        self._folder = folder
        self._memory = None if folder is None else Memory(folder, f"{url}#outer" if outer else url, run)
        self._seen: dict[int, bytes] = {}  # sealed records: the newest of other processes, and of this one
        self._newest: AnyRecord | None = None
        self._kept = -1
        self._here = -1  # the newest record that was seen at this very URL
        self._told = self._told_elsewhere = -1
        self._elsewhere: RunMemory | None = None
        self._seen_elsewhere: SeenRun | None = None
        self._folded: deque[str] = deque(maxlen=MOST_HASHES)  # hashes of the last records, up to the newest

    def begin(self, first: Callable[[], str | None] | None = None) -> int | None:
        """Begin a look at the log; return the number of the newest record that is known to have been seen before.

        Args:
            first: returns the hash of record 0, None where there is none; given when the log is opened.
        """
        known = None if self._memory is None else self._memory.newest()
        if known is not None:
            self._seen[known.seq] = known.record.encode()
            self._kept, self._here = max(self._kept, known.seq), max(self._here, known.seq)
        if first is not None and self._folder is not None and self._elsewhere is None:
            self._recognize(self._folder, first())
        return max(self._seen, default=None)

    def check_key(self, kind: str, public: str | None) -> None:
        """Raise Untrusted unless a key, or None for none, may sign this kind of record."""
        name = f"{self._a} {self._what} of run {self._run!r}"
        if public is None:
            raise self._unsigned(name)
        self._pin_for(name, kind, parse_key(public))

    def check_signature(self, record: AnyRecord, sealed: bytes, countersignature: bytes | None = None) -> None:
        """Raise Untrusted unless a record is of the run and signed, or countersigned, by a key that may sign it."""
        name = f"{self._what} {record.seq} of run {self._run!r}"
        if record.run != self._run:
            raise Untrusted(f"{name} in {self._url} is of another run, {record.run!r}", Distrust.OTHER_RUN)
        if countersignature is None:
            self._check_signature(name, _kind(record), sealed)
            return
        name = f"the countersignature of {name}"
        said = Countersignature.unseal(countersignature)
        if (said.run, said.seq, said.record) != (self._run, record.seq, sealed_hash(sealed)):
            raise Untrusted(f"{name} in {self._url} is one of other bytes", Distrust.BAD_SIGNATURE)
        self._check_signature(name, _kind(record), countersignature)

    def check(self, record: AnyRecord, sealed: bytes, countersignature: bytes | None = None) -> None:
        """Raise Untrusted unless a record may be believed: as ``check_signature``, and that no other had its number."""
        self.check_signature(record, sealed, countersignature)
        before = self._seen.get(record.seq)
        if before is not None and before != sealed:
            self._fork(record.seq, before, sealed)

    def check_snapshot(self, sealed: bytes) -> None:
        """Raise Untrusted unless a snapshot may be believed, whose seal fits."""
        self._check_signature(f"a snapshot of run {self._run!r}", SNAPSHOT, sealed)

    def check_end(self, newest: int, last: str | None) -> None:
        """Raise Untrusted if another record than the newest one, whose hash is ``last``, was seen elsewhere."""
        elsewhere = self._seen_elsewhere
        if elsewhere is None or elsewhere.url == self._url or newest < self._here or newest not in self._seen:
            return  # it was rolled back, if anything
        if elsewhere.hash_of(newest) not in (None, last):
            self._fork(newest, elsewhere.record.encode(), self._seen[newest])

    def gone(self, seq: int, newest: int, last: str | None) -> NoReturn:
        """Raise Untrusted: record ``seq`` was seen before, and the log ends at ``newest``, whose hash is ``last``.

        Raises:
            Behind: instead, where it was seen at another root of the run, and this one has the same records so far.
        """
        elsewhere = self._seen_elsewhere
        if elsewhere is not None and elsewhere.url != self._url and self._here <= newest < seq:
            self.check_end(newest, last)
            if last is not None and elsewhere.hash_of(newest) == last:
                self._tell_age(seq, _created_at(elsewhere.record))
                raise Behind(
                    f"run {self._run!r} in {self._url} ends at {self._what} {newest}, and {self._what} {seq} was seen "
                    f"in {elsewhere.url}: a copy that has not come as far. Wait for it, or read that one"
                )
        now = f"the newest is {newest} now" if newest >= 0 else "there is none now"
        raise Untrusted(
            f"run {self._run!r} in {self._url} was rolled back: {self._what} {seq} was seen before, and {now}. "
            f"{self._advice()}",
            Distrust.ROLLBACK,
        )

    def folded(self, record: AnyRecord, sealed: bytes) -> None:
        """Note that a record was checked and follows what was folded before it."""
        if self._newest is None or record.seq != self._newest.seq + 1:
            self._folded.clear()
            self._folded.extend([record.previous] if record.previous is not None else [])
        self._folded.append(sealed_hash(sealed))
        self._newest = record
        self._seen = {seq: kept for seq, kept in self._seen.items() if seq > record.seq} | {record.seq: sealed}

    def settle(self) -> None:
        """Remember the newest record that was folded; tell if it is old."""
        record = self._newest
        if record is None:
            return
        sealed = self._seen[record.seq]
        if self._memory is not None and record.seq > self._kept:
            other = self._memory.advance(record.seq, sealed)
            if other is not None:
                self._fork(record.seq, other.record.encode(), sealed)
            self._kept = record.seq
        if self._elsewhere is not None and record.seq > self._told_elsewhere:
            contradiction = self._elsewhere.advance(Found(self._url, record.seq, sealed, tuple(self._folded)))
            if contradiction is not None:
                known = self._elsewhere.newest()
                self._fork(contradiction, sealed if known is None else known.record.encode(), sealed)
            self._told_elsewhere = record.seq
        self._here = max(self._here, record.seq)
        self._tell_age(record.seq, record.created_at)

    def _recognize(self, folder: Path, first: str | None) -> None:
        """Find what was seen of the run at other roots, by the hash of its record 0."""
        if first is None:
            return
        self._elsewhere = RunMemory(folder, self._run, first)
        self._seen_elsewhere = seen = self._elsewhere.newest()
        if seen is not None:
            self._seen.setdefault(seen.seq, seen.record.encode())

    def _check_signature(self, name: str, kind: str, sealed: bytes) -> None:
        document = open_sealed(sealed)
        signature = document.signature
        if signature is None:
            raise self._unsigned(name)
        pin = self._pin_for(name, kind, signature.key)
        if not pin.key.verifies(document.body, signature.value):
            raise Untrusted(
                f"{name} in {self._url}: the signature does not fit the key {signature.public}",
                Distrust.BAD_SIGNATURE,
            )

    def _unsigned(self, name: str) -> Untrusted:
        return Untrusted(
            f"{name} in {self._url} is not signed: sign with a key that is trusted{self._way_back}", Distrust.UNSIGNED
        )

    def _pin_for(self, name: str, kind: str, public: bytes) -> Pin:
        pin = self._trust.pin(public)
        if pin is None or not pin.may_sign(kind):
            why = "which is not trusted" if pin is None else f"which may not sign {_named(kind)}"
            raise Untrusted(
                f"{name} in {self._url} is signed by {key_text(public)}, {why}{self._way_back}", Distrust.WRONG_KEY
            )
        return pin

    def _fork(self, seq: int, before: bytes, now: bytes) -> NoReturn:
        kept, memory = "", self._elsewhere or self._memory
        if memory is not None:
            files = " and ".join(str(file) for file in memory.keep_evidence(seq, before, now))
            kept = f"; both are kept as evidence: {files}"
        raise Untrusted(
            f"run {self._run!r} in {self._url} was forked: {self._what} {seq} is another one than was seen before"
            f"{kept}. {self._advice()}",
            Distrust.FORK,
        )

    def _advice(self) -> str:
        advice = "Find out who wrote to the store"
        kept = [str(memory.folder) for memory in (self._memory, self._elsewhere) if memory is not None]
        return f"{advice}; if the run was begun anew on purpose, delete {' and '.join(kept)}" if kept else advice

    def _tell_age(self, seq: int, created: str) -> None:
        if self._trust.max_age_s is None or self._told == seq:
            return
        age_s = (self._clock() - datetime.fromisoformat(created).astimezone(UTC)).total_seconds()
        if age_s > self._trust.max_age_s:
            self._told = seq
            message = (
                f"its newest {self._what}, {seq}, is {age_s:.0f} s old, more than {self._trust.max_age_s:g} s: "
                "the writer has stopped, or somebody keeps newer records back"
            )
            self._events.tell(Event(EventKind.FROZEN, self._run, message))


def _kind(record: AnyRecord) -> str:
    """Return what a pin must allow for a key to sign a record: its kind, or whose it is among those of outer rounds."""
    match record:
        case JoinRecord() | ContributeRecord() | LeaveRecord():
            return f"{ANY_MEMBER}{record.member}"
        case (
            StartRecord() | CloseRecord() | CheckpointRecord() | MergedRecord()
        ):  # others see for themselves whether they are right
            return ANY_MEMBER
        case RatesRecord() | RetireRoundsRecord() | DeleteRoundsRecord() | RestartRecord():
            return OUTER
    return record.kind


def _named(kind: str) -> str:
    if kind in (ANY_MEMBER, OUTER):
        return "this outer record"
    return f"for member {kind.removeprefix(ANY_MEMBER)!r}" if kind.startswith(ANY_MEMBER) else f"a {kind}"


def _created_at(record: str) -> str:
    """Return the time in a record, of this run or of its outer rounds, that was read and checked before."""
    return str(json.loads(open_sealed(record.encode()).body)["created_at"])
