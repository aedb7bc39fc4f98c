"""The mirror: a copy byte for byte, objects before the records that name them, from wherever it was left."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from pulse_registry.compaction import CompactOptions
from pulse_registry.compaction.loop import follow
from pulse_registry.errors import Conflict, CorruptObject, Forked, Mirrored, NotFound
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log import LogReader
from pulse_registry.log.mirror_mark import drop_mark, read_mark, write_mark
from pulse_registry.mirror import Lanes, log_copy
from pulse_registry.mirror.copier import Copier
from pulse_registry.mirror.needs import Unit
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import PrefixStore, Store, open_store
from pulse_registry.testing import CountingStore
from pulse_schemas import Countersignature
from tests.support.mirrors import copy, mirror, missing, tree, whole_log
from tests.support.outer_rounds import make_rounds
from tests.support.parts import CHANGES, wide_run
from tests.support.records import DictStore
from tests.support.registries import RUN, change, quick, small_model, without_pauses


def trained(versions: int, *, compact: bool = False, store: DictStore | None = None) -> DictStore:
    """Return a root with a run of so many versions, merged patches and a snapshot."""
    store = store or DictStore()
    model = small_model()
    with without_pauses(snapshot_every=4), quick(store, keyframe_every=4) as registry:
        first = len(registry.state().versions)
        for step in range(first, first + versions):
            change(model, step)
            registry.push(step, model, metadata={"step": step})
        if compact:
            compactor = registry.compactor(CompactOptions())
            assert [*follow(compactor, _Never(), None)]
            compactor.close()
        registry.tag("best", 0)
    return store


class _Never:
    def is_set(self) -> bool:
        return False


def _is_content(key: str) -> bool:
    return "/objects/" in key or "/layouts/" in key


def state_of(store: Store):
    return LogReader(PrefixStore(store, RUN), RUN).refresh()


def test_a_copy_is_the_source_byte_for_byte():
    source, copied = trained(9, compact=True), DictStore()
    with mirror(source, copied) as one:
        done = one.catch_up()
        assert tree(copied) == tree(source)
        state = state_of(source)
        assert (done.records, done.seq, done.source_seq) == (state.seq + 1, state.seq, state.seq)
        assert done.nbytes == sum(len(data) for key, data in source.objects.items() if _is_content(key))
        assert one.catch_up().objects == 0
    model = small_model()
    with quick(source) as registry:
        change(model, 99)
        registry.push(99, model)
    copy(source, copied)
    assert tree(copied) == tree(source)
    mine, theirs = small_model(1), small_model(2)
    with quick(source) as there, quick(copied) as here:
        assert there.pull("latest", into=mine).digest == here.pull("latest", into=theirs).digest


@pytest.mark.slow
def test_every_object_is_there_before_the_record_that_names_it(monkeypatch):
    source = trained(9, compact=True)

    class Watched(DictStore):
        def put(self, key, data, *, if_absent=False):
            super().put(key, data, if_absent=if_absent)
            assert not missing(whole_log(source).refresh(), whole_log(self).refresh(), self), key

    copied = Watched()
    copy(source, copied)
    assert tree(copied) == tree(source)


def test_what_is_there_is_not_sent_again_and_what_was_lost_is():
    source, copied = trained(5), DictStore()
    copy(source, copied)
    log = {key: data for key, data in copied.objects.items() if "/log/" in key or key.endswith("head")}
    for key in log:
        del copied.objects[key]  # as if it had been killed before the first record
    with mirror(source, copied) as one:
        done = one.catch_up()
    assert (done.objects, done.present) == (0, sum(map(_is_content, source.objects)))
    assert tree(copied) == tree(source)
    lost = next(key for key in copied.objects if "/patch/" in key)
    del copied.objects[lost]
    copy(source, copied)
    assert tree(copied) == tree(source)


def test_verify_reads_back_and_replaces_what_is_damaged_at_the_copy():
    source, copied = trained(5), DictStore()
    copy(source, copied)
    for key in filter(_is_content, list(copied.objects)):
        data = copied.objects[key]
        copied.objects[key] = bytes([data[0] ^ 1]) + data[1:]
    with mirror(source, copied) as one:
        assert one.catch_up().objects == 0, "sizes fit"
    with mirror(source, copied, verify=True) as one:
        one.catch_up()
    assert tree(copied) == tree(source)


@pytest.mark.parametrize("act", ["damage", "lose"])
def test_verify_sends_again_what_lies_beside_the_log_and_records_that_were_lost(act: str, tmp_path):
    make_rounds(str(tmp_path), RUN, 2)
    source = trained(9)
    outer = {key: (tmp_path / key).read_bytes() for key in open_store(str(tmp_path)).list(f"{RUN}/outer/")}
    source.objects |= outer
    source.objects[f"{RUN}/{keys.countersignature_key(2)}"] = Countersignature(run=RUN, seq=2, record="a" * 64).seal()
    copied = DictStore()
    copy(source, copied)
    records = {
        key for key in tree(copied) if keys.record_seq(key.removeprefix(f"{RUN}/").removeprefix("outer/")) is not None
    }
    newest = {key for key in records if key.startswith(f"{RUN}/outer/")} or records
    for key in {*tree(copied)} - {max(newest), max(records - newest)}:
        if act == "lose":
            del copied.objects[key]
        elif key not in records:
            copied.objects[key] = b"x" + copied.objects[key][1:]
    assert any("/segments/" in key for key in source.objects)
    copy(source, copied, verify=True)
    assert tree(copied) == tree(source)


def test_verify_names_a_damaged_record_and_puts_it_once_that_is_deleted():
    source, copied = trained(9), DictStore()
    copy(source, copied)
    key = f"{RUN}/{keys.record_key(3)}"
    copied.objects[key] = copied.objects[key][:-9]
    copy(source, copied)
    with pytest.raises(CorruptObject, match=r"log/000000000003\.json of dict:.* is damaged: .*--verify again"):
        copy(source, copied, verify=True)
    copied.objects[key] = copied.objects[f"{RUN}/{keys.record_key(2)}"]
    with pytest.raises(Forked, match="record 3 of"):
        copy(source, copied, verify=True)
    del copied.objects[key]
    copy(source, copied, verify=True)
    assert tree(copied) == tree(source)


def test_a_damaged_snapshot_at_the_copy_stops_nothing_and_is_copied_again():
    source, copied = trained(9), DictStore()
    copy(source, copied)
    key = max(key for key in copied.objects if "/snapshots/" in key)
    copied.objects[key] = b"x" + copied.objects[key][1:]
    with mirror(source, copied) as one:
        one.step()
        one.step()
    assert tree(copied) == tree(source)


def test_a_damaged_source_object_is_told_of_and_stops_the_records_that_name_it():
    source, copied, events = trained(6), DictStore(), list[Event]()
    patch = state_of(source).patches_into(3)[0].object.key
    good = source.objects[f"{RUN}/{patch}"]
    source.objects[f"{RUN}/{patch}"] = good[:-1] + bytes([good[-1] ^ 1])
    seconds, ours = [0.0], CountingStore(source)
    with mirror(ours, copied, events=Events(events.append), monotonic=lambda: seconds[0]) as one:
        done = one.step()
        assert done.blocked == (patch,)
        assert len(state_of(copied).versions) == 3
        assert [(event.kind, event.key) for event in events] == [(EventKind.OBJECT_NOT_COPIED, patch)]
        assert f"{RUN}/{patch}" not in copied.objects
        later = state_of(source).patches_into(5)[0].object.key
        assert f"{RUN}/{later}" in copied.objects, "it goes on with the others"
        with pytest.raises(CorruptObject, match="restore it there"):
            one.catch_up()
        assert len(events) == 1, "once"
        ours.reset()
        assert one.step(tidy=False).blocked == (patch,)
        assert not [key for verb, key in ours.ledger if "/objects/" in key], "it is not read again at each look"
        source.objects[f"{RUN}/{patch}"] = good
        seconds[0] += 61.0
        assert one.catch_up().blocked == ()
    assert tree(copied) == tree(source)


def test_what_is_damaged_on_its_way_is_fetched_again():
    class Flipping(DictStore):
        flips = 3

        def get(self, key, byte_range=None, **bound):
            data = super().get(key, byte_range, **bound)
            if "/patch/" in key and self.flips and data:
                self.flips -= 1
                return bytes([data[0] ^ (1 << self.flips)]) + data[1:]
            return data

    source, copied = trained(4, store=Flipping()), DictStore()
    source.flips = 3
    copy(source, copied)
    assert (tree(copied), source.flips) == (tree(source), 0)


def test_patches_in_parts_and_files_come_whole():
    source, copied = DictStore(), DictStore()
    wide_run(source)
    with quick(source) as registry:
        registry.push(9, small_model(), files={"config.json": b"{}", "tokenizer.json": b"[]"})
    copy(source, copied)
    assert sum("/objects/files/" in key for key in copied.objects) == 3
    assert sum(key.endswith("/patch-head") for key in copied.objects) == len(CHANGES)
    assert tree(copied) == tree(source)


def test_two_mirrors_at_once_do_no_harm(monkeypatch):
    monkeypatch.setattr(log_copy, "_BATCH", 2)
    source, copied = trained(7), DictStore()
    with mirror(source, copied) as one, mirror(source, copied) as two:
        one.step()
        two.step()
        trained(3, store=source)
        two.step()
        trained(2, store=source)
        one.catch_up()
        two.catch_up()
    assert tree(copied) == tree(source)


def test_what_another_mirror_has_put_meanwhile_is_read_back_once_its_memory_is_given_up():
    class Strict(Lanes):
        """Lanes of which nobody asks for memory while he has some: all would wait for one another."""

        held = threading.local()

        @contextmanager
        def memory(self, nbytes):
            assert not getattr(self.held, "has", False)
            with super().memory(nbytes):
                self.held.has = True
                try:
                    yield
                finally:
                    self.held.has = False

    source, copied, lanes = trained(4), DictStore(), Strict()
    copy(source, copied)
    first = state_of(source).patches_into(2)[0]
    store = PrefixStore(copied, RUN)
    copier = Copier(PrefixStore(source, RUN), store, copied, RUN, lanes, verify=True, listed=())
    assert copier.begin(Unit(first.object.key, first)).outcome() is None
    assert (copier.tally.objects, copier.tally.present) == (0, 1)
    lanes.close()


def test_a_fork_stops_at_the_record_that_differs_and_both_are_kept():
    source, copied = trained(4), DictStore()
    copy(source, copied)
    drop_mark(PrefixStore(copied, RUN))
    both = state_of(copied).seq
    with quick(copied) as registry:
        registry.tag("theirs", 0)
    trained(2, store=source)
    write_mark(PrefixStore(copied, RUN), RUN, "elsewhere")
    before = dict(copied.objects)
    with pytest.raises(Forked, match=f"record {both + 1} of") as caught, mirror(source, copied) as one:
        one.step()
    assert caught.value.seq == both + 1
    assert copied.objects == before


def test_another_writer_at_the_copy_is_refused():
    source, copied = trained(9), DictStore()
    copy(source, copied)
    before = dict(copied.objects)
    with quick(copied) as registry:
        with pytest.raises(Mirrored, match="holds a copy of"):
            registry.push(9, small_model())
        with pytest.raises(Mirrored):
            registry.tag("mine", 0)
        for policy in (RetentionPolicy(), RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0)):
            with pytest.raises(Mirrored):
                registry.gc(policy, dry_run=False)
        compactor = registry.compactor(CompactOptions(keyframe_every=1))
        assert compactor.step() is None
        assert {type(compactor.error(task)) for task in compactor.pending()} == {Mirrored}
        compactor.close()
    assert tree(copied).keys() - before.keys() <= {key for key in copied.objects if "/objects/" in key}
    mark = read_mark(PrefixStore(copied, RUN))
    assert mark is not None
    assert (mark.run, mark.source) == (RUN, source.url)


def test_nobody_joins_outer_rounds_at_a_copy(tmp_path):
    source, copied = tmp_path / "a", tmp_path / "b"
    make_rounds(str(source), RUN, 2)
    copy(open_store(str(source)), open_store(str(copied)))
    with pytest.raises(Mirrored):
        make_rounds(str(copied), RUN, 1)


def test_countersignatures_come_along_and_damaged_ones_do_not():
    source, copied = trained(3), DictStore()
    copy(source, copied)
    of = Countersignature(run=RUN, seq=2, record="a" * 64)
    source.objects[f"{RUN}/{keys.countersignature_key(2)}"] = of.seal()
    source.objects[f"{RUN}/{keys.countersignature_key(1)}"] = b"damaged"
    copy(source, copied)
    assert copied.objects[f"{RUN}/{keys.countersignature_key(2)}"] == of.seal()
    assert f"{RUN}/{keys.countersignature_key(1)}" not in copied.objects


def test_old_snapshots_go_as_at_the_source():
    source, copied = trained(20), DictStore()
    with mirror(source, copied) as one:
        for _ in range(4):
            one.catch_up()
            assert tree(copied) == tree(source)
            trained(6, store=source)
    assert sum("/log/snapshots/" in key for key in copied.objects) <= 3


def test_a_damaged_snapshot_is_left_out_and_the_run_opens_all_the_same():
    source, copied = trained(20), DictStore()
    newest = max(key for key in source.objects if "/log/snapshots/" in key)
    source.objects[newest] = source.objects[newest][:-1] + b"!"
    copy(source, copied)
    assert newest not in copied.objects
    assert f"{RUN}/head" not in copied.objects
    assert len(state_of(copied).versions) == 20


def test_where_writers_work_no_copy_is_made():
    source, other = trained(3), trained(1)
    before = dict(other.objects)
    with pytest.raises(Conflict, match="that is no copy"), mirror(source, other) as one:
        one.step()
    assert other.objects == before
    with pytest.raises(NotFound, match="there is no run"), mirror(DictStore(), DictStore()) as one:
        one.step()


def test_a_record_that_came_costs_few_requests():
    source, copied = trained(5), DictStore()
    ours, theirs = CountingStore(source), CountingStore(copied)
    with mirror(ours, theirs) as one:
        one.catch_up()
        with quick(source) as registry:
            registry.tag("next", 1)
            ours.reset()
            theirs.reset()
            one.step(tidy=False)
            seq = registry.state().seq
            assert ours.ledger == [("get", f"{RUN}/{keys.record_key(number)}") for number in (seq, seq + 1)]
            assert theirs.ledger == [("put", f"{RUN}/{keys.record_key(seq)}")]


def test_outer_rounds_are_copied_too(tmp_path):
    make_rounds(str(tmp_path / "a"), RUN, 5)
    source, copied = open_store(str(tmp_path / "a")), DictStore()
    copy(source, copied)
    there = {key: source.get(key) for key in source.list("") if not key.startswith((f"{RUN}/leases/", f"{RUN}/clock"))}
    assert any("/outer/objects/" in key for key in there)
    assert tree(copied) == there


def test_catching_up_ends_beside_a_writer_that_is_always_ahead():
    source, left = trained(2), 20

    def ahead(key: str) -> None:
        nonlocal left
        if left and keys.record_seq(key.removeprefix(f"{RUN}/")) is not None:
            left -= 1
            trained(1, store=source)

    with mirror(source, _Watched(ahead)) as one:
        done = one.catch_up()
    assert left > 10
    assert 3 <= done.seq < state_of(source).seq


class _Watched(DictStore):
    """Tells of each record that is put."""

    def __init__(self, told) -> None:
        super().__init__()
        self._told = told

    def put(self, key, data, *, if_absent=False) -> None:
        super().put(key, data, if_absent=if_absent)
        self._told(key)
