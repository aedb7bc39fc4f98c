"""What an audit finds of a run that lacks something, and what it says of one that is whole."""

from __future__ import annotations

import json

import numpy as np
import pytest
from blake3 import blake3

from pulse_registry.client.store import ServiceStore
from pulse_registry.doctor.audit import DefectKind, RunAudit, audited_runs
from pulse_registry.doctor.audit import run as audit_of_runs
from pulse_registry.doctor.audit.log import LogAudit
from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import LogReader, sealed_hash
from pulse_registry.log.superseded import TRIES
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.retention import RetentionPolicy
from pulse_registry.signing import PinGuard, Trust
from pulse_registry.store import MOST_WHOLE_BYTES, FileStore, PrefixStore, RetryStore
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_registry.testing import CountingStore, Fault, FaultStore
from pulse_schemas import Head, SegmentedSnapshot, Snapshot, canonical_json, unseal_record
from tests.security.signing.actors import TRAINER
from tests.support.records import DictStore, Script, writer
from tests.support.snapshots import put_snapshot

RUN = "math"
CONTENTS = pytest.mark.parametrize("contents", [False, True], ids=["listed", "read"])


def push(root, versions, *, signer=None, **options):
    """Push versions of a small model, of which every third has a keyframe."""
    kept = PushOptions(dtype="keep", keyframe_share=1e9, keyframe_every=3, **options)
    with Registry(
        root, RUN, Options(push=kept, signer=signer, compute=ComputeOptions(backend="reference"))
    ) as registry:
        first = len(registry.state().versions)
        for step in range(first, first + versions):
            registry.push(step, {"w": np.arange(3000, dtype=np.uint16) + np.uint16(step)})


@pytest.fixture(scope="module")
def pushed():
    """The root of a run of eight versions with a snapshot."""
    root = DictStore()
    push(root, 8)
    state = LogReader(PrefixStore(root, RUN), RUN).refresh()
    root.put(f"{RUN}/{keys.snapshot_key(state.seq)}", state.to_snapshot().seal())
    root.put(f"{RUN}/{keys.HEAD}", Head(seq=state.seq, snapshot=state.seq).seal())
    return root


@pytest.fixture
def root(pushed):
    """The root of the same run in a store of its own."""
    root = DictStore()
    root.objects, root.times = dict(pushed.objects), dict(pushed.times)
    return root


@pytest.fixture
def store(root):
    """The run, as what is scoped to it sees it."""
    return PrefixStore(root, RUN)


def audit(store, **options):
    return RunAudit(store, RUN, **options)


def defects(store, contents=True, **options):
    return [*audit(store, **options).defects(contents=contents)]


def newest(store):
    return LogReader(store, RUN).refresh()


def sealed(store, seq):
    return store.get(keys.record_key(seq))


@CONTENTS
def test_a_whole_run_has_no_defects_and_is_counted(store, contents):
    looked = audit(store)
    assert [*looked.defects(contents=contents)] == []
    assert (looked.log.state.seq, looked.versions) == (newest(store).seq, 8)
    named = list(store.list(keys.OBJECTS))
    assert looked.objects == len(named)
    assert looked.nbytes == sum(store.size(key) for key in named)


@CONTENTS
def test_an_audit_writes_nothing(store, contents):
    counting = CountingStore(store)
    defects(counting, contents)
    assert counting.calls.keys() <= {"get", "size", "list", "exists"}


@CONTENTS
def test_each_object_and_layout_that_is_missing_is_named_with_what_it_must_be(store, contents):
    state = newest(store)
    lost = [state.patches_into(1)[0].object, state.keyframe(0).shards[0]]
    layout = keys.layout_key(state.latest.layout)
    for key in (*(item.key for item in lost), layout):
        store.delete(key)
    found = defects(store, contents)
    assert {(one.key, one.kind) for one in found} == {(k, DefectKind.MISSING) for k in (layout, *(i.key for i in lost))}
    by_key = {one.key: one.remedy for one in found}
    for item in lost:
        assert f"{item.size:,} bytes of BLAKE3 {item.blake3}" in by_key[item.key]


def test_what_has_another_size_or_other_bytes_is_damaged(store):
    state = newest(store)
    short, flipped = state.patches_into(1)[0].object.key, state.keyframe(0).shards[0].key
    layout = keys.layout_key(state.latest.layout)
    store.put(short, store.get(short)[:-1])
    store.put(flipped, store.get(flipped)[:-1] + bytes([store.get(flipped)[-1] ^ 1]))
    store.put(layout, store.get(layout) + b" ")
    found = {one.key: one for one in defects(store)}
    assert found.keys() == {short, flipped, layout}
    assert {one.kind for one in found.values()} == {DefectKind.DAMAGED}
    assert f"{store.size(short):,} bytes, {store.size(short) + 1:,} were committed" in found[short].found
    assert "BLAKE3" in found[flipped].found


def test_bytes_that_were_damaged_on_the_way_are_read_again(store):
    key = newest(store).patches_into(1)[0].object.key
    assert defects(FaultStore(store, [Fault("flip_bit", verb="get", matches=lambda verb, k: k == key, nth=1)])) == []


def test_an_object_is_read_in_pieces_however_large_it_is(store, monkeypatch):
    monkeypatch.setattr(audit_of_runs, "_READ_BYTES", 1000)
    ranges = []

    class Watched(WrapperStore):
        def get(self, key, byte_range=None, *, max_bytes=MOST_WHOLE_BYTES):
            if key.startswith(keys.OBJECTS):
                ranges.append(byte_range)
            return super().get(key, byte_range, max_bytes=max_bytes)

    assert defects(Watched(store)) == []
    assert max(stop - start for start, stop in ranges) == 1000


def test_orphans_and_what_was_retired_are_not_missed(root, store):
    before = len([*store.list(keys.OBJECTS)])
    store.put("objects/patch/of-nobody", b"orphan")
    with Registry(root, RUN, Options(compute=ComputeOptions(backend="reference"))) as registry:
        for _ in range(2):
            registry.gc(RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0), dry_run=False)
    assert len([*store.list(keys.OBJECTS)]) < before
    assert defects(store) == []


@CONTENTS
def test_what_is_retired_while_an_audit_goes_on_is_no_defect(store, contents):
    gone = newest(store).patches_into(1)[0].object.key

    class Retiring(WrapperStore):
        """Retires and deletes an object once the audit has read the log."""

        def list(self, prefix, after=None):
            if prefix == keys.SNAPSHOTS and self._store.exists(gone):
                writer(self._store, 5).retire(keys=[gone])
                self._store.delete(gone)
            return super().list(prefix, after)

    assert defects(Retiring(store), contents) == []
    assert not store.exists(gone)


# -- the log -----------------------------------------------------------------------------------------------------------


@CONTENTS
def test_a_missing_record_is_named_with_the_hash_of_the_right_one(store, contents):
    right = sealed_hash(sealed(store, 6))
    store.delete(keys.record_key(6))
    (found,) = defects(store, contents)
    assert (found.key, found.kind) == (keys.record_key(6), DefectKind.MISSING)
    assert "record 6 is missing, and record 7 is there" in found.found
    assert f"restore {keys.record_key(6)} from" in found.remedy
    assert found.remedy.endswith(f"The right record 6 has the BLAKE3 {right}")


def test_every_gap_is_named_and_what_is_wrong_between_them(store):
    last = newest(store).seq
    for seq in (0, 3, 4, last - 1):
        store.delete(keys.record_key(seq))
    store.put(keys.record_key(6), sealed(store, 6).replace(b"math", b"mach"))
    assert [(one.key, one.kind) for one in defects(store)] == [
        (keys.record_key(0), DefectKind.MISSING),
        (keys.record_key(3), DefectKind.MISSING),
        (keys.record_key(6), DefectKind.DAMAGED),
        (keys.record_key(last - 1), DefectKind.MISSING),
    ]


def test_a_record_that_was_replaced_by_another_one_is_found_behind_a_gap_too(store):
    store.delete(keys.record_key(2))
    other = unseal_record(sealed(store, 5)).model_copy(update={"write_id": "0" * 32})
    store.put(keys.record_key(5), other.seal())
    gap, replaced = defects(store)
    assert gap.key == keys.record_key(2)
    assert (replaced.key, replaced.kind) == (keys.record_key(6), DefectKind.DAMAGED)
    assert "record 5 is another one" in replaced.found


def test_the_record_that_ends_the_folding_is_told_once(store):
    store.put(keys.record_key(3), b"junk")
    (found,) = defects(store)
    assert (found.key, found.kind) == (keys.record_key(3), DefectKind.DAMAGED)


def test_objects_of_versions_that_readers_reach_by_a_snapshot_past_a_gap_are_looked_at(store):
    store.delete(keys.record_key(1))
    lost = newest(store).patches_into(7)[0].object.key
    store.delete(lost)
    looked = audit(store)
    assert {one.key for one in looked.defects(contents=True)} == {keys.record_key(1), lost}
    assert looked.versions == 8


def test_a_snapshot_and_a_hint_that_know_of_later_records_are_told(store):
    last = newest(store).seq
    for seq in range(last - 2, last + 1):
        store.delete(keys.record_key(seq))
    found = defects(store)
    assert [one.key for one in found] == [keys.snapshot_key(last), keys.HEAD]
    assert all(f"restore {keys.record_key(last - 2)} and those after it" in one.remedy for one in found)
    store.delete(keys.snapshot_key(last))
    store.put(keys.HEAD, b"junk")
    (found,) = defects(store)
    assert (found.key, found.kind) == (keys.HEAD, DefectKind.DAMAGED)
    store.delete(keys.HEAD)
    assert defects(store) == []


def segmented(store):
    """Put a snapshot of segments at the newest record, in place of what is there; return its key, and its segment's."""
    key = put_snapshot(store, newest(store))
    (segment,) = store.list(keys.SEGMENTS)
    return key, segment


def lose_segment(store, key, segment):
    store.delete(segment)


def damage_segment(store, key, segment):
    store.put(segment, store.get(segment)[:-1] + b"x")


def damage_snapshot(store, key, segment):
    store.put(key, b"junk")


def replace_last_record(store, key, segment):
    document = SegmentedSnapshot.unseal(store.get(key))
    store.put(key, document.model_copy(update={"last": "0" * 64}).seal())


def contradict(store, key, segment):
    document = SegmentedSnapshot.unseal(store.get(key))
    store.put(key, document.model_copy(update={"count": document.count + 1}).seal())


def of_another_run(store, key, segment):
    document = SegmentedSnapshot.unseal(store.get(key))
    store.put(key, document.model_copy(update={"run": "other"}).seal())


@CONTENTS
def test_snapshots_of_segments_are_whole_and_segments_that_none_names_are_no_defect(store, contents):
    segmented(store)
    store.put(keys.segment_key(3, "0" * 64), b"of a writer that stopped")
    assert defects(store, contents) == []


@CONTENTS
@pytest.mark.parametrize(
    "harm", [lose_segment, damage_segment, damage_snapshot, replace_last_record, contradict, of_another_run]
)
def test_a_snapshot_that_can_not_be_opened_is_told_with_what_is_wrong(store, contents, harm):
    key, segment = segmented(store)
    harm(store, key, segment)
    (found,) = defects(store, contents)
    assert (found.key, found.kind) == (key, DefectKind.DAMAGED)
    assert "nothing is lost" in found.remedy
    assert (segment in found.found) == (harm in (lose_segment, damage_segment))
    assert newest(store).seq == keys.snapshot_seq(key)
    store.delete(key)
    assert defects(store, contents) == []


def test_a_snapshot_of_the_formats_before_segments_is_told_alike(store):
    key = keys.snapshot_key(newest(store).seq)
    document = Snapshot.unseal(store.get(key))
    store.put(key, document.model_copy(update={"count": document.count + 1}).seal())
    (found,) = defects(store)
    assert (found.key, found.kind) == (key, DefectKind.DAMAGED)
    assert "nothing is lost" in found.remedy


def test_a_snapshot_of_a_newer_release_is_told_as_such(store):
    key, _ = segmented(store)
    document = SegmentedSnapshot.unseal(store.get(key)).model_dump(mode="json")
    body = canonical_json(document | {"format": "pulse-snapshot/9"})
    store.put(key, canonical_json({"blake3": blake3(body).hexdigest(), "body": json.loads(body)}))
    (found,) = defects(store)
    assert (found.key, found.kind) == (key, DefectKind.UNSUPPORTED)


def test_a_snapshot_that_a_writer_deletes_meanwhile_is_no_defect(store):
    key, segment = segmented(store)

    class Tidied(WrapperStore):
        def get(self, name, *args, **options):
            if name == segment:
                self._store.delete(key)
                self._store.delete(segment)
            return super().get(name, *args, **options)

    assert defects(Tidied(store)) == []
    assert not store.exists(key)


def test_of_many_snapshots_those_are_looked_at_that_a_reader_would_try():
    store = DictStore()
    made = Script(RUN).epoch()
    for _ in range(TRIES):
        made.commit()
    made.store_in(store)
    for record in made.records:
        store.put(keys.snapshot_key(record.seq), b"junk")
    found = [one.key for one in LogAudit(store, RUN).defects()]
    assert found == [keys.snapshot_key(record.seq) for record in made.records[-TRIES:]]


def test_a_listing_that_others_overtake_shows_no_gap(store):
    class Overtaken(WrapperStore):
        times = 1

        def list(self, prefix, after=None):
            if prefix == keys.LOG and self.times:
                self.times = 0
                first = newest(self._store).seq + 1
                other = writer(self._store, 4)
                other.tag("one", 1)
                other.tag("two", 2)
                return iter([key for key in super().list(prefix, after) if key != keys.record_key(first)])
            return super().list(prefix, after)

    assert defects(Overtaken(store)) == []


def test_a_run_without_records_is_not_whole():
    root = DictStore()
    root.put(f"{RUN}/objects/patch/x", b"x")
    (found,) = defects(PrefixStore(root, RUN))
    assert (found.key, found.kind) == (keys.record_key(0), DefectKind.MISSING)


def test_with_pinned_keys_a_record_that_none_of_them_signed_is_told(store):
    def guard():
        return PinGuard(Trust([TRAINER.public]), "dict://", RUN)

    (found,) = {one.kind: one for one in defects(store, guard=guard)}.values()
    assert (found.key, found.kind) == (keys.record_key(0), DefectKind.UNTRUSTED)
    root = DictStore()
    push(root, 3, signer=TRAINER)
    assert defects(PrefixStore(root, RUN), guard=guard) == []


def test_a_store_that_fails_is_no_defect(store):
    key = newest(store).patches_into(1)[0].object.key
    faults = [Fault("fail_before", verb="get", matches=lambda verb, k: k == key, times=1)]
    with pytest.raises(StoreUnavailable):
        defects(FaultStore(store, faults))
    assert (
        defects(
            RetryStore(FaultStore(store, [Fault("fail_before", verb="size", nth=1)]), RetryPolicy(sleep=lambda _: None))
        )
        == []
    )


def test_a_service_is_not_audited():
    service = ServiceStore("https://pulse.example.com")
    with pytest.raises(InvalidArgument, match="go to the bucket"):
        audit(PrefixStore(service, RUN))
    service.close()


def test_the_runs_of_a_root_are_audited_but_for_what_a_doctor_left():
    root = DictStore()
    for run in ("a", "b"):
        Script(run).epoch().store_in(PrefixStore(root, run))
    root.put("pulse-doctor-0123456789abcdef/begun", b"x")
    assert [*audited_runs(root)] == ["a", "b"]


def test_an_empty_folder_of_a_root_is_no_run(tmp_path):
    root = FileStore(tmp_path)
    Script("a").epoch().store_in(PrefixStore(root, "a"))
    root.put("b/head", b"x")
    root.delete("b/head")
    assert [*audited_runs(root)] == ["a"]


# a folder that others can write to


@CONTENTS
@pytest.mark.parametrize("place", ["objects", "objects/patch", "layouts"])
def test_what_lies_behind_a_link_is_told_object_by_object(pushed, tmp_path, place, contents):
    files = PrefixStore(FileStore(tmp_path / "root"), RUN)
    for key, data in pushed.objects.items():
        FileStore(tmp_path / "root").put(key, data)
    behind = {key for key in files.list("") if key.startswith(f"{place}/")}
    (tmp_path / "root" / RUN / place).rename(tmp_path / "outside")
    (tmp_path / "root" / RUN / place).symlink_to(tmp_path / "outside")
    found = defects(files, contents)
    assert {defect.key for defect in found} == behind
    assert {defect.kind for defect in found} == {DefectKind.DAMAGED}
    assert all("is a symbolic link" in defect.found for defect in found)


def test_records_that_are_links_are_told_and_are_no_gaps(pushed, tmp_path):
    files = PrefixStore(FileStore(tmp_path / "root"), RUN)
    for key, data in pushed.objects.items():
        FileStore(tmp_path / "root").put(key, data)
    for seq in (2, 5):
        place = tmp_path / "root" / RUN / keys.record_key(seq)
        place.rename(tmp_path / str(seq))
        place.symlink_to(tmp_path / str(seq))
    found = [defect for defect in defects(files) if defect.key.startswith(keys.LOG)]
    assert [(defect.key, defect.kind) for defect in found] == [
        (keys.record_key(seq), DefectKind.DAMAGED) for seq in (2, 5)
    ]
    assert all("is a symbolic link" in defect.found for defect in found)
