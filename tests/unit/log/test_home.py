"""A run that has moved: who may write to it, and where."""

from __future__ import annotations

import pytest

from pulse_registry.errors import CorruptObject, Fenced, InvalidArgument, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log import AppendGuard, LogReader, LogWriter, Snapshotter
from pulse_registry.log.home import prove, proved_move
from pulse_schemas import Home, Sealed
from tests.support.records import APPENDS, RUN, DictStore, Script, chain, draft, new_store, write_id, writer

EU = "s3://bucket/eu"
MOVE = write_id(4321)


class Counting(DictStore):
    """Counts the reads of what proves a move."""

    proofs = 0

    def get(self, key: str, *args, **named) -> bytes:
        self.proofs += key == keys.HOME
        return super().get(key, *args, **named)


def moved(versions: int = 3) -> Script:
    script = chain(versions)
    return script.add(script.make_move(to=EU, write_id=MOVE))


def at_source() -> Counting:
    store = Counting()
    moved().store_in(store)
    store.delete(keys.HOME)
    return store


def at_home() -> Counting:
    store = at_source()
    prove(store, RUN, MOVE)
    return store


def log_of(store: DictStore) -> dict[str, bytes]:
    return {key: data for key, data in store.objects.items() if keys.record_seq(key) is not None}


@pytest.mark.parametrize("kind", APPENDS)
def test_nothing_follows_a_move_where_the_run_does_not_live(kind: str):
    store = at_source()
    before = log_of(store)
    with pytest.raises(Fenced, match=r"record 4 moved it to s3://bucket/eu: nothing is written to it in dict:// any"):
        APPENDS[kind](writer(store))
    assert log_of(store) == before


@pytest.mark.parametrize("kind", APPENDS)
def test_at_its_home_a_run_that_has_moved_goes_on(kind: str):
    store = at_home()
    APPENDS[kind](writer(store))
    assert LogReader(store, RUN).refresh().seq == 5


@pytest.mark.parametrize("kind", APPENDS)
def test_who_was_there_before_the_move_is_fenced_by_it(kind: str):
    store = chain(3).store_in(new_store())
    term = writer(store, 1)
    term.attach()
    writer(store, 2).move(EU, MOVE)
    with pytest.raises(Fenced, match="moved it to s3://bucket/eu"):
        APPENDS[kind](term)


def test_a_trainer_with_a_term_is_fenced_and_told_where_to():
    store = new_store()
    term = writer(store, 1)
    term.begin()
    term.commit(draft(0))
    writer(store, 2).move(EU, MOVE)
    for again in (lambda: term.commit(draft(1)), term.begin):
        with pytest.raises(Fenced, match="moved it to s3://bucket/eu"):
            again()
    assert term.fenced


def test_a_commit_of_a_term_that_the_move_ended_counts_for_nothing_at_the_new_home_either():
    script = moved()
    old = script.make_commit(epoch=1)
    assert len(script.add(old).state.versions) == 3


def test_readers_go_on_where_it_does_not_live():
    state = LogReader(at_source(), RUN).refresh()
    assert len(state.versions) == 3
    assert state.home is not None
    assert (state.home.move, state.home.to, state.home.seq) == (MOVE, EU, 4)


def test_a_run_that_never_moved_asks_for_no_proof_and_one_that_has_asks_once():
    never = Counting()
    chain(3).store_in(never)
    writer(never).tag("best", 1)
    assert never.proofs == 0
    store = at_home()
    term = writer(store)
    term.begin()
    for number in (3, 4):
        term.commit(draft(number))
    assert store.proofs == 1


def test_a_run_that_comes_back_is_written_again_where_it_began_and_nowhere_else():
    source, home, back = at_source(), at_home(), write_id(99)
    term = writer(home, 1)
    term.begin()
    term.commit(draft(3))
    writer(home, 2).move("s3://bucket/us", back)
    source.objects |= log_of(home)  # a mirror
    with pytest.raises(Fenced, match="s3://bucket/us"):
        writer(source).begin()  # nothing proves it yet
    prove(source, RUN, back)
    writer(source).begin()
    with pytest.raises(Fenced, match="s3://bucket/us"):
        term.commit(draft(4))
    with pytest.raises(Fenced, match="s3://bucket/us"):
        writer(home).begin()


def test_a_writer_that_slept_through_a_move_and_a_copy_of_what_followed_is_fenced():
    source = chain(3).store_in(new_store())
    sleeper = writer(source, 1)
    sleeper.tag("old", 0)
    home = DictStore()
    home.objects = dict(source.objects)  # type: ignore[attr-defined]
    mover = writer(source, 2)
    mover.move(EU, MOVE)
    home.objects |= log_of(source)  # type: ignore[arg-type]
    prove(home, RUN, MOVE)
    at = writer(home, 3)
    at.begin()
    at.commit(draft(3))
    source.objects |= log_of(home)  # type: ignore[attr-defined]
    with pytest.raises(Fenced, match="s3://bucket/eu"):
        sleeper.tag("old", 1)


def test_a_move_is_only_from_home_unless_that_is_lost():
    store = at_source()
    with pytest.raises(Fenced):
        writer(store).move("s3://bucket/us", write_id(99))
    writer(store).move("s3://bucket/us", write_id(99), lost=True)
    home = LogReader(store, RUN).refresh().home
    assert home is not None
    assert home.to == "s3://bucket/us"


def test_a_run_without_records_cannot_be_moved():
    with pytest.raises(InvalidArgument, match="moves a run that has no record"):
        writer(new_store()).move(EU, MOVE)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptObject),
        (Home(run="other", move=MOVE).seal(), CorruptObject),
        (Home(run=RUN, move=MOVE).seal()[:-1], CorruptObject),
    ],
)
def test_a_proof_that_is_damaged_or_of_another_run_proves_nothing(data: bytes, error: type[Exception]):
    store = at_source()
    store.put(keys.HOME, data)
    with pytest.raises(error):
        writer(store).begin()


def test_a_proof_of_a_later_release_is_refused_as_such():
    store = at_source()
    later = Home(run=RUN, move=MOVE).canonical().replace(b"pulse-home/1", b"pulse-home/2")
    store.put(keys.HOME, Sealed(later).to_bytes())
    with pytest.raises(UnsupportedFormat):
        proved_move(store, RUN)


@pytest.mark.parametrize("proof", [None, write_id(5)])
def test_the_guard_of_a_service_fences_where_the_run_does_not_live(proof: str | None):
    store = at_source()
    if proof is not None:
        prove(store, RUN, proof)
    before = log_of(store)
    with pytest.raises(Fenced, match="s3://bucket/eu"):
        _guard(store).admit(moved().make_epoch().seal())
    assert log_of(store) == before


def test_the_guard_of_a_service_lets_a_run_move_and_go_on_at_its_home():
    store, script = at_home(), moved()
    guard = _guard(store)
    guard.admit(script.make_epoch().seal())
    script.epoch()
    guard.admit(script.make_move(to="s3://bucket/us").seal())
    script.move("s3://bucket/us")
    with pytest.raises(Fenced, match="s3://bucket/us"):
        guard.admit(script.make_epoch().seal())


def test_a_snapshot_of_a_moved_run_is_of_the_sixth_format_and_says_where_it_lives():
    store = at_home()
    term = writer(store, snapshot_every=1)
    term.begin()
    key = keys.snapshot_key(5)
    assert b'"format":"pulse-snapshot/6"' in store.objects[key]
    reader = LogReader(store, RUN)
    assert (reader.refresh().home, reader.snapshot_seq) == (term.reader.state.home, 5)


def test_a_snapshot_of_a_run_that_never_moved_is_of_the_fifth_format():
    store = new_store()
    term: LogWriter = writer(store, snapshot_every=1)
    term.begin()
    assert b'"format":"pulse-snapshot/5"' in store.objects[keys.snapshot_key(0)]
    assert b'"home"' not in store.objects[keys.snapshot_key(0)]


def _guard(store: DictStore) -> AppendGuard:
    reader = LogReader(store, RUN)
    return AppendGuard(store, RUN, reader, Snapshotter(store, reader))
