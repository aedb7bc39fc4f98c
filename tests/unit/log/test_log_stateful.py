"""Two trainers, a compactor and a bad network, in any order: the history stays linear and nothing is lost.

The model beside the real thing is a list of drafts. What it can't know, whether a put that was given up has landed, it
reads from the bucket, and then holds the log to it.
"""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pulse_registry.errors import AlreadyExists, Conflict, Fenced, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import CommitDraft, LogReader, LogWriter, fold
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, Store
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_schemas import CommitRecord, EpochRecord, unseal_record
from tests.support.records import RUN, clock, draft, ids, new_store, patch

FATES = st.sampled_from(["ok", "ok", "lost", "lost twice", "refused", "never", "late"])


class Network(WrapperStore):
    """One client's way to the store; ``fate`` is that of its next conditional put.

    ok; lost: done, and the answer lost; lost twice: done, sent again by the client, and so refused; refused: the
    read-back after a lost answer fails too; never: not done; late: not done yet.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.fate = "ok"
        self.under_way: list[tuple[str, bytes]] = []
        self._deaf = False

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if self._deaf:
            self._deaf = False
            raise StoreUnavailable(key)
        return super().get(key, byte_range, max_bytes=max_bytes)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        fate, self.fate = (self.fate, "ok") if if_absent else ("ok", self.fate)
        if fate == "never":
            raise StoreUnavailable(key)
        if fate == "late":
            assert isinstance(data, bytes)
            self.under_way.append((key, data))
            raise StoreUnavailable(key)
        super().put(key, data, if_absent=if_absent)
        if fate == "lost twice":
            raise AlreadyExists(key)
        if fate in ("lost", "refused"):
            self._deaf = fate == "refused"
            raise StoreUnavailable(key)

    def deliver(self) -> None:
        for key, data in self.under_way:
            try:
                super().put(key, data, if_absent=True)
            except AlreadyExists:
                continue
        self.under_way.clear()


class Trainer:
    """One writer, and what it believes: its pending draft, and what it was told is committed."""

    def __init__(self, store: Store, number: int) -> None:
        self.network = Network(store)
        self.reader = LogReader(self.network, RUN)
        self.writer = LogWriter(self.network, RUN, self.reader, clock(), ids(number), f"w{number}", snapshot_every=4)
        self.pending: CommitDraft | None = None
        self.fenced = False


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = new_store()
        self.numbers = itertools.count(1)
        self.trainers = [Trainer(self.store, 0), Trainer(self.store, 1)]
        self.compactor = Trainer(self.store, 2)
        self.reader = LogReader(self.store, RUN)
        self.told: dict[int, str] = {}
        self.attached: set[str] = set()
        self.tags = itertools.count(1)

    @rule(who=st.integers(0, 1), fate=FATES)
    def begin(self, who: int, fate: str) -> None:
        trainer = self.trainers[who]
        trainer.network.fate = fate
        try:
            trainer.writer.begin()
        except Fenced:
            trainer.fenced = True
        except StoreUnavailable:
            assert fate in ("never", "late", "refused")

    @rule(who=st.integers(0, 1))
    def crash_and_restart(self, who: int) -> None:
        under_way = self.trainers[who].network.under_way
        self.trainers[who] = Trainer(self.store, next(self.numbers) + 2)
        self.trainers[who].network.under_way = under_way
        self.trainers[who].writer.begin()

    @rule(who=st.integers(0, 1), fate=FATES, again=st.booleans())
    def commit(self, who: int, fate: str, again: bool) -> None:
        trainer = self.trainers[who]
        if trainer.writer.epoch is None:
            return
        if trainer.pending is None or not again:
            version = len(trainer.reader.state.versions)
            trainer.pending = draft(version, tag=next(self.tags))
        item = trainer.pending
        trainer.network.fate = fate
        try:
            record = trainer.writer.commit(item)
        except Fenced:
            trainer.fenced, trainer.pending = True, None
        except Conflict:
            trainer.pending = None
            assert not trainer.fenced
        except StoreUnavailable:
            assert fate in ("never", "late", "refused")
            assert not trainer.fenced
        else:
            trainer.pending = None
            assert record.write_id == item.write_id
            assert self.told.setdefault(item.version, item.write_id) == item.write_id

    @rule(fate=FATES)
    def attach(self, fate: str) -> None:
        known = len(self.compactor.reader.refresh().versions)
        if known < 2:
            return
        merged = patch(0, known - 1, tag=10**20 + next(self.tags))
        self.compactor.network.fate = fate
        try:
            self.compactor.writer.attach([merged])
        except StoreUnavailable:
            assert fate in ("never", "late", "refused")
        else:
            self.attached.add(merged.object.key)

    @rule()
    def deliver(self) -> None:
        for trainer in (*self.trainers, self.compactor):
            trainer.network.deliver()

    @rule(who=st.integers(0, 1))
    def refresh(self, who: int) -> None:
        self.trainers[who].reader.refresh()

    @rule(text=st.sampled_from([b"", b"junk", None]))
    def lose_the_hint(self, text: bytes | None) -> None:
        self.store.delete(keys.HEAD)
        if text is not None:
            self.store.put(keys.HEAD, text)

    @invariant()
    def the_history_is_linear_and_holds_all_that_was_promised(self) -> None:
        found = [key for key in self.store.list(keys.LOG) if keys.record_seq(key) is not None]
        assert found == [keys.record_key(seq) for seq in range(len(found))]
        records = [unseal_record(self.store.get(key)) for key in found]
        ids_in_log = [record.write_id for record in records]
        assert len(set(ids_in_log)) == len(ids_in_log), "every write lands at most once"
        epochs = [record.epoch for record in records if isinstance(record, EpochRecord)]
        assert epochs == list(range(1, len(epochs) + 1))

        expected: list[str] = []
        epoch = 0
        for record in records:
            if isinstance(record, EpochRecord):
                epoch = record.epoch
            elif isinstance(record, CommitRecord) and record.epoch == epoch:
                assert record.version == len(expected)
                expected.append(record.write_id)
        state = fold(RUN, records)
        by_seq = {record.seq: record.write_id for record in records}
        assert [by_seq[entry.seq] for entry in state.versions] == expected
        assert {version: expected[version] for version in self.told} == self.told
        assert all(state.is_live(key) for key in self.attached)

        for reader in (self.reader, LogReader(self.store, RUN)):
            seen = reader.refresh()
            assert seen.last == state.last
            if records:
                assert seen.to_snapshot() == state.to_snapshot()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
