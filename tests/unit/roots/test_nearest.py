"""Several roots as one store: whose word counts, what a far root is asked, and where things are written."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import AccessDenied, Conflict, Fenced, InvalidArgument, Mirrored, NotFound, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import LogReader
from pulse_registry.log.home import prove
from pulse_registry.log.mirror_mark import write_mark
from pulse_registry.roots import NearestStore, connect_roots, roots_of
from pulse_registry.store import MemoryStore, PrefixStore, Presigner, SignedPut, Store, WrapperStore
from pulse_registry.store.elsewhere import asking_all_roots
from pulse_registry.store.wrappers.run import RunStore
from pulse_server.transport.urls import UrlSigner
from tests.security.signing.actors import history, record_at, writer
from tests.support.clock import Clock
from tests.support.records import RUN
from tests.support.roots import Region
from tests.support.waiting import HANG_S

LENGTH = 12
HISTORY = history(LENGTH - 1, signer=None)


class Pair:
    """A near root and a far one, as one store."""

    def __init__(self) -> None:
        self.near, self.far, self.clock = Region("near"), Region("far"), Clock()
        self.store = NearestStore([self.near, self.far], clock=self.clock, sleep=self.clock.sleep)

    def reader(self) -> LogReader:
        return LogReader(PrefixStore(self.store, RUN), RUN)


def grow(region: Region, records: int) -> None:
    """Let a root have so many records."""
    for seq in range(records):
        region.held.objects[f"{RUN}/{keys.record_key(seq)}"] = record_at(HISTORY, seq)


def record(seq: int) -> str:
    return f"{RUN}/{keys.record_key(seq)}"


# -- logs --------------------------------------------------------------------------------------------------------------


def test_a_reader_of_the_near_root_asks_nothing_of_the_far_one():
    pair = Pair()
    grow(pair.near, 5), grow(pair.far, 9)
    reader = pair.reader()
    assert reader.refresh().seq == 4
    pair.near.asked()
    for _ in range(3):
        assert reader.refresh().seq == 4
    grow(pair.near, 6)
    assert reader.refresh().seq == 5
    assert pair.near.asked() == [("get", record(5))] * 4 + [("get", record(6))]
    assert pair.far.asked() == []


def test_a_near_root_that_is_known_to_be_behind_costs_one_request_to_the_far_one_a_look():
    pair = Pair()
    grow(pair.near, 5), grow(pair.far, 9)
    reader = pair.reader()
    pair.near.dead = True
    assert reader.refresh().seq == 8
    pair.near.dead, pair.clock.now = False, 1000.0
    pair.near.asked(), pair.far.asked()
    assert reader.refresh().seq == 8
    assert pair.near.asked() == [("get", record(9)), ("size", record(8))]
    assert pair.far.asked() == [("get", record(9))]
    grow(pair.near, 9)
    assert reader.refresh().seq == 8
    assert pair.far.asked() == []  # it has come as far


def test_where_more_is_known_to_be_there_all_roots_are_asked():
    pair = Pair()
    grow(pair.near, 5), grow(pair.far, 9)
    reader = pair.reader()
    reader.refresh()
    with asking_all_roots():
        assert reader.refresh().seq == 8
    assert reader.look_further().seq == 8
    grow(pair.far, 10)
    assert reader.refresh().seq == 9  # the near one is known to be behind by now


def test_a_run_that_the_near_root_does_not_have_yet_is_read_at_the_far_one():
    pair = Pair()
    grow(pair.far, 3)
    assert pair.reader().refresh().seq == 2
    pair = Pair()
    assert pair.reader().refresh().seq == -1
    pair.far.dead, pair.clock.now = True, 1000.0
    with pytest.raises(StoreUnavailable):
        pair.reader().refresh()


def test_a_damaged_record_is_read_at_the_next_root():
    pair = Pair()
    grow(pair.near, 5), grow(pair.far, 5)
    pair.near.damaged.add(record(3))
    assert pair.reader().refresh().seq == 4
    assert pair.far.asked() == [("get", record(3))]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 3)),
        st.tuples(st.just("mirror"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["near", "far"]), st.booleans()),
        st.tuples(st.just("look"), st.just(0)),
        st.tuples(st.just("look all"), st.just(0)),
    ),
    max_size=25,
)


@given(STEPS)
def test_whatever_roots_do_a_reader_is_where_a_plain_model_says(steps):
    pair, source, copied, at = Pair(), 0, 0, -1
    reader = pair.reader()
    for step, value in [*steps, ("look", 0)]:
        if step == "push":
            source = min(source + value, LENGTH)
            grow(pair.far, source)
        elif step == "mirror":
            copied = min(copied + value, source)
            grow(pair.near, copied)
        elif step in ("near", "far"):
            (pair.near if step == "near" else pair.far).dead = bool(value)
        else:
            pair.clock.now += 1000.0  # nobody is left alone any more
            ends = {root: end - 1 for root, end in ((pair.near, copied), (pair.far, source)) if not root.dead}
            expected = None
            if step == "look" and ends.get(pair.near, -1) >= max(at, 0):
                expected = ends[pair.near]  # it is asked alone
            elif len(ends) == 2 or (step == "look" and ends.get(pair.far, -1) >= 0):
                expected = ends[pair.far]
            try:
                said = reader.refresh().seq if step == "look" else reader.look_further().seq
            except StoreUnavailable:
                said = None
            assert said == expected
            at = max(at, -1 if reader.seen is None else reader.seen.seq)
    assert pair.far.held.objects.keys() >= pair.near.held.objects.keys()


# -- objects -----------------------------------------------------------------------------------------------------------

OBJECT = f"{RUN}/{keys.patch_key(0, 1, '0' * 32)}"


def test_an_object_that_the_near_root_lacks_is_read_at_the_far_one():
    pair = Pair()
    pair.far.held.objects[OBJECT] = b"weights"
    buffer = bytearray(3)
    pair.store.get_into(OBJECT, (1, 4), buffer)
    assert (pair.store.get(OBJECT), pair.store.size(OBJECT), bytes(buffer)) == (b"weights", 7, b"eig")
    with pytest.raises(NotFound):
        pair.store.get(f"{OBJECT}x")


def test_an_object_is_not_gone_while_a_root_that_may_have_it_is_away():
    pair = Pair()
    pair.far.dead = True
    with pytest.raises(StoreUnavailable):
        pair.store.get(OBJECT)
    with pytest.raises(StoreUnavailable, match="has just failed: try again"):
        pair.store.get(OBJECT)  # the far root is left alone, and not asked


def test_a_hint_that_the_first_root_lacks_is_not_looked_for_elsewhere():
    pair = Pair()
    pair.far.held.objects[f"{RUN}/{keys.HEAD}"] = b"{}"
    with pytest.raises(NotFound):
        pair.store.get(f"{RUN}/{keys.HEAD}")
    assert pair.far.asked() == []
    pair.near.dead = True
    assert pair.store.get(f"{RUN}/{keys.HEAD}") == b"{}"
    assert [*pair.store.list(RUN)] == [f"{RUN}/{keys.HEAD}"]
    assert [*pair.store.folders("")] == [f"{RUN}/"]


# -- roots that fail ---------------------------------------------------------------------------------------------------


def test_a_root_that_fails_is_left_alone_for_a_while_and_tried_again():
    pair = Pair()
    pair.near.held.objects[OBJECT] = pair.far.held.objects[OBJECT] = b"weights"
    pair.near.dead = True
    pair.store.get(OBJECT)
    assert pair.near.asked()
    rests = []
    for _ in range(6):
        began = pair.clock.now
        while not (asked := pair.near.asked()):
            assert pair.store.get(OBJECT) == b"weights"
            pair.clock.now += 1.0
        assert len(asked) == 1  # once: it is not waited for again
        rests.append(pair.clock.now - began)
    assert rests == pytest.approx([5, 10, 20, 40, 60, 60], abs=1.5)
    pair.near.dead, pair.clock.now = False, pair.clock.now + 100
    pair.far.asked()
    for _ in range(3):
        pair.store.get(OBJECT)
    assert pair.far.asked() == []


def test_a_root_that_fails_for_a_moment_is_asked_again_and_no_other():
    pair = Pair()
    pair.near.held.objects[OBJECT] = b"weights"
    pair.near.dead = True
    sleep = pair.clock.sleep

    def back(seconds: float) -> None:
        sleep(seconds)
        pair.near.dead = False

    pair.clock.sleep = back  # type: ignore[method-assign]
    store = NearestStore([pair.near, pair.far], clock=pair.clock, sleep=back)
    assert store.get(OBJECT) == b"weights"
    assert pair.far.asked() == []


def test_where_no_root_answers_that_is_said_and_may_be_tried_again():
    pair = Pair()
    pair.near.dead = pair.far.dead = True
    with pytest.raises(StoreUnavailable) as caught:
        pair.store.get(OBJECT)
    assert not caught.value.lasting
    pair.far.dead, pair.far.held.objects[OBJECT] = False, b"weights"
    assert pair.store.get(OBJECT) == b"weights"


def test_a_root_that_lets_nobody_in_is_one_that_fails():
    pair = Pair()

    class Locked(MemoryStore):
        def get(self, *_: object, **__: object) -> bytes:
            raise AccessDenied("the key has expired")

    pair.far.held.objects[OBJECT] = b"weights"
    assert NearestStore([Locked("locked"), pair.far]).get(OBJECT) == b"weights"
    with pytest.raises(AccessDenied):
        NearestStore([Locked("locked"), Locked("other")]).get(OBJECT)


def test_a_bucket_that_is_no_more_is_a_root_that_fails():
    pair = Pair()

    class Gone(MemoryStore):
        def get(self, *_: object, **__: object) -> bytes:
            raise InvalidArgument("there is no such bucket")

    grow(pair.far, 3)
    store = NearestStore([Gone("gone"), pair.far], clock=pair.clock, sleep=pair.clock.sleep)
    assert LogReader(PrefixStore(store, RUN), RUN).refresh().seq == 2


# -- writes ------------------------------------------------------------------------------------------------------------


def test_a_lease_goes_to_the_first_root_that_answers_and_no_mark_is_looked_for():
    pair = Pair()
    lease = f"{RUN}/{keys.lease_key('w0')}"
    pair.store.put(lease, b"1")
    assert lease in pair.near.held.objects
    pair.near.dead = True
    pair.store.put(lease, b"2")
    assert pair.far.held.objects == {lease: b"2"}
    pair.store.delete(lease)
    assert pair.far.held.objects == {}


def test_what_is_written_goes_to_the_root_that_is_no_copy_and_the_run_is_read_there_from_then_on():
    pair = Pair()
    grow(pair.near, 5), grow(pair.far, 9)
    write_mark(RunStore(pair.near, RUN), RUN, "dict://far")
    reader = pair.reader()
    assert reader.refresh().seq == 4
    pair.store.write_at_home(RUN)
    writer(PrefixStore(pair.store, RUN), None, believes=reader, number=7).begin()
    assert reader.refresh().seq == 9
    assert record(9) in pair.far.held.objects
    assert record(5) not in pair.near.held.objects
    pair.near.asked()
    reader.refresh()
    assert pair.near.asked() == []


class Slow(WrapperStore):
    """A root that says whether one run is a copy only once it was let to."""

    def __init__(self, store: Store, run: str) -> None:
        super().__init__(store)
        self.asked, self.may_say, self._key = threading.Event(), threading.Event(), f"{run}/{keys.MIRROR}"

    def exists(self, key: str) -> bool:
        if key == self._key:
            self.asked.set()
            assert self.may_say.wait(HANG_S)
        return super().exists(key)


def test_the_home_of_a_run_is_found_while_that_of_another_one_is_looked_for():
    pair = Pair()
    slow = Slow(pair.near, "slow")
    store = NearestStore([slow, pair.far], clock=pair.clock, sleep=pair.clock.sleep)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(store.write_at_home, "slow")
        assert slow.asked.wait(HANG_S)
        try:
            pool.submit(store.write_at_home, "other").result(HANG_S)
            assert not first.done()
        finally:
            slow.may_say.set()
        first.result(HANG_S)


def test_a_run_that_is_nowhere_begins_at_the_first_root():
    pair = Pair()
    writer(PrefixStore(pair.store, RUN), None, number=7).begin()
    assert (record(0) in pair.near.held.objects, pair.far.held.objects) == (True, {})


def test_no_run_begins_anew_while_the_root_that_may_have_it_is_away():
    pair = Pair()
    pair.far.dead = True
    with pytest.raises(StoreUnavailable):
        pair.store.write_at_home(RUN)


def test_the_home_is_found_while_a_copy_is_away():
    pair = Pair()
    grow(pair.far, 2)
    pair.near.dead = True
    pair.store.write_at_home(RUN)
    pair.store.put(OBJECT, b"weights")
    assert OBJECT in pair.far.held.objects


def test_after_a_move_the_home_is_the_root_that_it_led_to():
    pair = Pair()
    grow(pair.far, 3)
    term = writer(PrefixStore(pair.far, RUN), None, number=7)
    term.move("dict://near", "a" * 32)
    pair.near.held.objects |= pair.far.held.objects
    with pytest.raises(Fenced, match="moved it to dict://near"):
        pair.store.write_at_home(RUN)
    prove(RunStore(pair.near, RUN), RUN, "a" * 32)
    pair.store.write_at_home(RUN)
    pair.store.put(OBJECT, b"weights")
    assert OBJECT in pair.near.held.objects


def moved_away(pair: Pair) -> None:
    """Let a run move from the near root to the far one, where its next writer has begun."""
    writer(PrefixStore(pair.near, RUN), None, number=7).move("dict://far", "a" * 32)
    pair.far.held.objects |= pair.near.held.objects
    prove(RunStore(pair.far, RUN), RUN, "a" * 32)
    writer(PrefixStore(pair.far, RUN), None, number=8).begin()


def test_a_reader_goes_on_where_the_run_has_moved_to():
    pair = Pair()
    grow(pair.near, 3)
    reader = pair.reader()
    assert reader.refresh().seq == 2
    moved_away(pair)
    assert reader.refresh().seq == 4
    assert pair.reader().refresh().seq == 4
    pair.near.asked()
    assert reader.refresh().seq == 4
    assert pair.near.asked() == [("get", record(5)), ("size", record(4))]  # which lags, as others do


def test_who_wrote_at_the_old_home_writes_at_the_new_one_after_a_move():
    pair = Pair()
    grow(pair.near, 3)
    reader = pair.reader()
    pair.store.write_at_home(RUN)
    assert reader.refresh().seq == 2
    moved_away(pair)
    assert reader.refresh().seq == 4
    pair.store.write_at_home(RUN)
    writer(PrefixStore(pair.store, RUN), None, believes=reader, number=9).begin()
    assert record(5) in pair.far.held.objects
    assert record(4) not in pair.near.held.objects
    assert reader.refresh().seq == 5


def test_a_home_whose_newest_record_is_the_move_that_led_there_is_written_on():
    pair = Pair()
    grow(pair.near, 3)
    writer(PrefixStore(pair.near, RUN), None, number=7).move("dict://far", "a" * 32)
    pair.far.held.objects |= pair.near.held.objects
    prove(RunStore(pair.far, RUN), RUN, "a" * 32)
    reader = pair.reader()
    pair.store.write_at_home(RUN)
    writer(PrefixStore(pair.store, RUN), None, believes=reader, number=8).begin()
    assert reader.refresh().seq == 4
    assert record(4) in pair.far.held.objects
    assert record(4) not in pair.near.held.objects


def test_a_reader_goes_on_at_the_new_home_while_the_lost_one_is_away():
    pair = Pair()
    grow(pair.near, 3), grow(pair.far, 3)
    reader = pair.reader()
    assert reader.refresh().seq == 2
    pair.near.dead = True
    writer(PrefixStore(pair.far, RUN), None, number=7).move("dict://far", "a" * 32, lost=True)
    with pytest.raises(StoreUnavailable):
        reader.refresh()  # nothing proves yet that the log goes on there
    prove(RunStore(pair.far, RUN), RUN, "b" * 32)  # what is left of an earlier move
    with pytest.raises(StoreUnavailable):
        reader.refresh()
    prove(RunStore(pair.far, RUN), RUN, "a" * 32)
    assert reader.refresh().seq == 3
    pair.far.asked()
    assert reader.refresh().seq == 3
    assert pair.far.asked() == [("get", record(4))]
    writer(PrefixStore(pair.far, RUN), None, number=8).begin()
    assert reader.refresh().seq == 4
    writer(PrefixStore(pair.far, RUN), None, number=9).move("dict://near", "c" * 32)
    with pytest.raises(StoreUnavailable):
        reader.refresh()  # it may go on where nobody can look


def test_two_homes_or_copies_alone_are_told():
    pair = Pair()
    grow(pair.near, 2), grow(pair.far, 3)
    with pytest.raises(Conflict, match="dict://near and dict://far both say that they are its home"):
        pair.store.write_at_home(RUN)
    for region in (pair.near, pair.far):
        write_mark(RunStore(region, RUN), RUN, "dict://source")
    with pytest.raises(Mirrored, match="put its home on the list"):
        pair.store.write_at_home(RUN)


def test_a_shared_base_is_read_anywhere_and_written_at_one_root():
    pair = Pair()
    key = f"_bases/{'0' * 64}-0000/closed"
    grow(pair.far, 2)
    pair.store.write_at_home(RUN)
    for change in (lambda: pair.store.put(key, b""), lambda: pair.store.delete(key)):
        with pytest.raises(InvalidArgument, match="open one alone"):
            change()
    pair.store.home(RUN).put(key, b"closed")
    assert pair.store.get(key) == b"closed"
    assert (key in pair.far.held.objects, key in pair.near.held.objects) == (True, False)
    assert [store.url for store in pair.store.stores] == ["dict://near", "dict://far"]


# -- signed URLs -------------------------------------------------------------------------------------------------------


class Signing(MemoryStore):
    """A store whose signer says which one it is of."""

    def presigner(self) -> Presigner:
        return _Signer(self.url)


class _Signer:
    def __init__(self, url: str) -> None:
        self._url = url

    def presign(self, key: str, expires_s: int) -> str:
        return f"{self._url}/{key}"

    def presign_put(self, key: str, size: int, sha256: str, expires_s: int) -> SignedPut:
        return SignedPut(f"{self._url}/{key}", {})

    begin_parts = abort_parts = finish_parts = presign_part = None  # type: ignore[assignment]


def test_urls_are_of_the_root_that_a_run_is_read_from_and_uploads_go_to_its_home():
    near, far, clock = Signing(uuid.uuid4().hex), Signing(uuid.uuid4().hex), Clock()
    for region, records in ((near, 3), (far, 5)):
        for seq in range(records):
            region.put(record(seq), record_at(HISTORY, seq))
    write_mark(RunStore(near, RUN), RUN, far.url)
    store = NearestStore([near, far], clock=clock, sleep=clock.sleep)
    urls, reader = UrlSigner(store, 900), LogReader(PrefixStore(store, RUN), RUN)
    key = keys.patch_key(0, 1, "0" * 32)

    def url() -> str:
        signed = urls.known(RUN, [key]) or urls.sign(RUN, [key])
        return signed.by_key[key].removesuffix(f"/{RUN}/{key}")

    assert reader.refresh().seq == 2
    assert (url(), url()) == (near.url, near.url)
    reader.look_further()
    assert url() == far.url  # the near root is known to be behind, and may lack the object
    for seq in (3, 4):
        near.put(record(seq), record_at(HISTORY, seq))
    reader.refresh()
    assert url() == near.url
    signer = store.presigner()
    assert signer is not None
    assert signer.presign_put(f"{RUN}/{key}", 1, "0" * 64, 60).url.startswith(far.url)
    assert url() == far.url  # the run is written at its home, and read there from then on


def test_where_one_root_signs_nothing_the_service_gives_objects_itself():
    assert NearestStore([Signing("signs"), MemoryStore("does not")]).presigner() is None


# -- lists -------------------------------------------------------------------------------------------------------------


def test_roots_are_listed_or_written_with_commas(tmp_path):
    assert roots_of("s3://a, s3://b/c") == ["s3://a", "s3://b/c"]
    assert roots_of(tmp_path) == [str(tmp_path)]
    assert roots_of(["s3://a,b", tmp_path]) == ["s3://a,b", str(tmp_path)]
    for wrong in (3, [3]):
        with pytest.raises(InvalidArgument, match="and no int"):
            roots_of(wrong)  # type: ignore[arg-type]


def test_one_root_is_no_list_and_a_list_has_each_root_once_and_no_service():
    assert connect_roots(["memory://a"]).roots() is None
    assert isinstance(connect_roots(["memory://a", "memory://b"]), NearestStore)
    with pytest.raises(InvalidArgument, match="each comes once"):
        connect_roots(["memory://a", "memory://a"])
    with pytest.raises(InvalidArgument, match="is a service: give it a list of roots"):
        connect_roots(["memory://a", "https://registry.example"])
    with pytest.raises(InvalidArgument, match="is empty"):
        connect_roots(roots_of("memory://a,"))


def test_all_wrappers_look_through_to_the_roots():
    pair = Pair()
    wrapped: Store = PrefixStore(pair.store, RUN)
    assert wrapped.roots() is pair.store
