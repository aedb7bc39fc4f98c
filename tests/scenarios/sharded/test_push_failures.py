"""A push of ranks that goes wrong on one goes wrong alike on all, leaves nothing behind, and the next one goes on."""

from __future__ import annotations

import errno
import re
import struct
import tempfile
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pulse_registry import Fenced, InvalidArgument, InvalidModel, LayoutMismatch, Registry, RetentionPolicy, Slice
from pulse_registry.errors import Conflict, CorruptObject, Gone, PeerLost, StoreUnavailable
from pulse_registry.format.patch_coding import CoderChoice
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from pulse_registry.peers.peers import Bytes
from pulse_registry.push import sharded_keyframe
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.gate import PATIENCE, GateStore
from tests.support.groups import small_groups
from tests.support.ranks import Death, MortalPeers, alike, on_ranks, outcomes
from tests.support.records import DictStore
from tests.support.registries import all_restored, bits, check_store, commits, quick, settle
from tests.support.sampling import EVERY_CALL
from tests.support.slices import put

Rank = dict[str, Any]
State = dict[str, np.ndarray[Any, Any]]


def states(count: int, seed: int = 0) -> list[State]:
    """Return states of three tensors in which some cells change from each to the next."""
    rng = np.random.default_rng(seed)
    made = [{"w": rng.integers(0, 2**15, (8, 8), dtype=np.uint16), "b": rng.random(12).astype("f4")}]
    made[0]["r"] = rng.integers(0, 200, 9, dtype=np.uint8)
    while len(made) < count:
        made.append({name: array.copy() for name, array in made[-1].items()})
        made[-1]["w"][rng.integers(8, size=6), rng.integers(8, size=6)] += 1
        made[-1]["b"][rng.integers(12)] += 1
        made[-1]["r"][rng.integers(9)] += 1
    return made


def dealt(state: State, ranks: int) -> list[Rank]:
    """Return ranks that hold columns of one tensor, rows of another, and the third as replicas."""
    found = []
    for rank in range(ranks):
        (c, d), (e, f) = ((n * rank // ranks, n * (rank + 1) // ranks) for n in (8, 12))
        found.append(
            {
                "w": Slice(np.ascontiguousarray(state["w"][:, c:d]), of=(8, 8), at=(0, c)),
                "b": Slice(state["b"][e:f].copy(), of=(12,), at=(e,)),
                "r": state["r"].copy(),
            }
        )
    return found


def restored(store: DictStore, wanted: list[State]) -> None:
    """Check that the versions are these states, and the bucket is sound."""
    check_store(store)
    assert [record.version for record in commits(store)] == list(range(len(wanted)))
    assert all_restored(store, wanted) == [bits(state) for state in wanted]


def failed(registry: Registry, step: Any, model: Rank, **options: Any) -> BaseException | None:
    """Return what a push raises."""
    try:
        registry.push(step, model, **options)
    except Exception as error:  # noqa: BLE001 - what the test compares
        return error
    return None


# -- bad input -----------------------------------------------------------------------------------------------------


def overlapped(rank: Rank) -> Rank:
    return rank | {"w": Slice(np.zeros((8, 5), np.uint16), of=(8, 8), at=(0, 3))}


def two_shapes(rank: Rank) -> Rank:
    return rank | {"w": [rank["w"], Slice(np.zeros((9, 1), np.uint16), of=(9, 8), at=(0, 7))]}


def without(rank: Rank) -> Rank:
    return {name: value for name, value in rank.items() if name != "w"}


def refusing(rank: Rank) -> Rank:
    return rank | {"b": Slice(np.full(6, np.nan, "f4"), of=(12,), at=(6,))}


WRONG: dict[str, tuple[Callable[[Rank], Rank], str]] = {
    "a slice is missing": (
        without,
        "tensor 'w', [8, 8]: 32 of its 64 cells are on no rank. There are box [0:8, 0:4] of [8, 8] on rank 0",
    ),
    "an overlap": (
        overlapped,
        "tensor 'w', [8, 8]: box [0:8, 0:4] of [8, 8] on rank 0 and box [0:8, 3:8] of [8, 8] on rank 1 overlap",
    ),
    "two shapes on one rank": (two_shapes, "rank 1: slices of tensor 'w' have two shapes or dtypes"),
    "another shape": (lambda rank: rank | {"r": np.zeros(8, np.uint8)}, "'r' is U8 [9] on rank 0, and U8 [8] on rank"),
    "another dtype": (lambda rank: rank | {"r": np.zeros(9, np.int8)}, "'r' is U8 [9] on rank 0, and I8 [9] on rank"),
    "local layer numbers": (lambda rank: rank | {"r": rank["r"] + 1}, "tensor 'r', cells 0 to 8, is not the same on"),
    "what can't be stored": (lambda rank: rank | {"x": np.zeros(2, np.complex64)}, "rank 1: tensor 'x'"),
    "no model": (lambda rank: {}, "rank 1: "),
    "NaN": (refusing, "rank 1: "),
}


OTHER_TENSORS = ["a slice is missing", "an overlap", "another shape", "another dtype"]
"""Not told from a new layout: a rank whose tensors are others than at the push before has all begin anew."""


@pytest.mark.parametrize(("case", "at"), [(one, at) for one in WRONG for at in (0, 1) if one[:5] != "local" or not at])
def test_what_is_wrong_on_one_rank_is_raised_on_all_and_the_next_push_goes_on(case: str, at: int) -> None:
    """As the first push, and as one that follows a version.

    It fails if `speak` does not compare the cover, if `check_replicas` is left out, or if a vote is ignored.
    """
    wrong, message = WRONG[case]
    wanted, store = states(3), DictStore()

    def push(registry: Registry, rank: int) -> Any:
        error = None
        for step, state in enumerate(wanted):
            held = dealt(state, 2)[rank]
            if step == at:
                error = failed(registry, 90, wrong(held) if rank else held)
            registry.push(step, held)
        return error

    errors = on_ranks([store] * 2, push, nonfinite="refuse")
    if at and case in OTHER_TENSORS:
        assert "rank 1 had to begin anew, with other tensors than before" in alike(errors, Conflict)
    else:
        assert message in alike(errors, InvalidModel)
    restored(store, wanted)


@pytest.mark.parametrize(
    ("step", "metadata"),
    [("x", None), (2**64, None), (90, {"a": object()}), (90, {"a": float("nan")})],
    ids=["no step", "a large step", "no JSON", "NaN"],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_step_or_metadata_that_are_not_valid_on_one_rank_are_raised_on_all(step: Any, metadata: Any, at: int) -> None:
    wanted, store = states(2), DictStore()

    def push(registry: Registry, rank: int) -> Any:
        error = None
        for number, state in enumerate(wanted):
            held = dealt(state, 2)[rank]
            if number == at:
                error = failed(registry, step, held, metadata=metadata) if rank else failed(registry, 90, held)
            registry.push(number, held)
        return error

    assert "rank 1: " in alike(on_ranks([store] * 2, push), InvalidArgument)
    restored(store, wanted)


@pytest.mark.parametrize("at", [0, 1])
def test_another_step_on_another_rank_is_raised_on_all(at: int) -> None:
    wanted, store = states(3), DictStore()

    def push(registry: Registry, rank: int) -> Any:
        error = None
        for step, state in enumerate(wanted):
            held = dealt(state, 3)[rank]
            if step == at:
                error = failed(registry, 40 + (rank == 2), held)
            registry.push(step, held)
        return error

    said = alike(on_ranks([store] * 3, push), InvalidArgument)
    assert "rank 2 pushes step 41" in said
    assert "rank 0 step 40" in said
    restored(store, wanted)


def test_a_push_on_one_rank_alone_says_that_all_have_to_push_and_which_came() -> None:
    [state], store = states(1), DictStore()
    group = LocalGroup(3, wait=lambda until, seconds: until())

    def push(registry: Registry, rank: int) -> Any:
        return failed(registry, 0, dealt(state, 3)[rank]) if rank == 1 else held.wait(PATIENCE)

    held = threading.Event()

    def life(peers: LocalPeers) -> Any:
        with quick(store, peers=peers) as registry:
            try:
                return push(registry, peers.rank)
            finally:
                held.set()

    _, error, _ = outcomes(life, group)
    assert isinstance(error, PeerLost)
    assert error.ranks == (0, 2)
    assert "(rank 1 came)" in str(error)
    assert "has to be made on every rank" in str(error)
    assert not store.objects


def test_a_rank_that_closes_without_the_push_of_the_others_is_named() -> None:
    [state], store = states(1), DictStore()

    def push(registry: Registry, rank: int) -> Any:
        return failed(registry, 0, dealt(state, 2)[rank]) if rank == 0 else None

    error, nothing = on_ranks([store] * 2, push)
    assert isinstance(error, PeerLost)
    assert nothing is None
    assert error.ranks == (1,)
    assert not store.objects


def test_a_new_layout_is_refused_alike_and_one_on_one_rank_alone_begins_anew_on_all() -> None:
    wanted, store = states(2), DictStore()
    more = {"z": np.arange(5, dtype=np.int16)}

    def push(registry: Registry, rank: int) -> Any:
        for step, state in enumerate(wanted):
            registry.push(step, dealt(state, 2)[rank])
        held = dealt(wanted[1], 2)[rank] | (more if rank else {})
        error = failed(registry, 2, held)
        return error, failed(registry, 3, held)

    found = on_ranks([store] * 2, push)
    assert "rank 1 had to begin anew, with other tensors" in alike([one for one, _ in found], Conflict)
    assert [two for _, two in found] == [None, None]
    restored(store, [*wanted, wanted[1] | more])

    def refused(registry: Registry, rank: int) -> Any:
        return failed(registry, 4, dealt(wanted[1], 2)[rank])

    said = alike(on_ranks([store] * 2, refused, allow_new_layout=False), LayoutMismatch)
    assert "tensor 'z' is gone" in said
    restored(store, [*wanted, wanted[1] | more])


def test_pushes_that_take_the_place_of_others_are_refused() -> None:
    [state] = states(1)

    def push(registry: Registry, rank: int) -> Any:
        return failed(registry, 0, dealt(state, 2)[rank])

    assert "coalesce" in alike(on_ranks([DictStore()] * 2, push, when_full="coalesce"), InvalidArgument)


# -- a store that fails --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
@pytest.mark.parametrize("broken", [0, 1])
@EVERY_CALL
def test_a_store_that_fails_at_any_call_on_one_rank_costs_no_change(action: Any, broken: int, every: bool) -> None:
    """A version, a patch, and a patch with a keyframe after it; an answer that is lost is one that failed, too.

    Every other call fails, and the answers of those between them are lost; all of both in the sweep.
    """
    wanted = states(4)
    nth = 1 if every or action == "fail_before" else 2
    while fails_at(nth, action, broken, wanted):
        nth += 1 if every else 2
    assert nth > 3


def fails_at(nth: int, action: Any, broken: int, wanted: list[State]) -> bool:
    """Let one call of one rank's store fail, and check all that follows; tells whether there was such a call."""
    store, armed, meet = DictStore(), [True], threading.Barrier(2, timeout=PATIENCE)
    faulty = FaultStore(store, [Fault(action, matches=lambda verb, key: armed[0], nth=nth)])

    def push(registry: Registry, rank: int) -> Any:
        errors = [failed(registry, step, dealt(state, 2)[rank]) for step, state in enumerate(wanted)]
        meet.wait()
        armed[0] = False
        return [*errors, failed(registry, 9, dealt(wanted[-1], 2)[rank])]

    with small_groups(64):
        stores = [faulty if rank == broken else store for rank in range(2)]
        first, second = on_ranks(stores, push, keyframe_every=2, coder="gap")
        assert [type(error) for error in first] == [type(error) for error in second], nth
        assert [str(error) for error in first] == [str(error) for error in second], nth
        raised = [error for error in first if error is not None]
        assert len(raised) <= 1, (nth, raised)
        assert all(isinstance(error, StoreUnavailable) for error in raised)
        assert first[-1] is None
        by_step = [wanted[min(record.step, 3)] for record in commits(store)]
        check_store(store)
        assert all_restored(store, by_step) == [bits(state) for state in by_step], nth
        assert commits(store)[-1].step == 9
    return bool(faulty.fired)


# -- death ---------------------------------------------------------------------------------------------------------


def lives(store: DictStore, wanted: list[State], ranks: int, dies: tuple[int, int, bool] | None) -> list[Any]:
    """Let a job push states; one of its ranks dies at one of its calls. Returns results, errors, and calls."""
    calls = []

    def life(peers: LocalPeers) -> Any:
        dead = dies is not None and dies[0] == peers.rank
        mortal = MortalPeers(peers, dies[1] if dies is not None and dead else 0, after=bool(dies and dies[2]))
        registry = quick(store, peers=mortal, keyframe_every=2, coder="gap")
        try:
            for step, state in enumerate(wanted):
                registry.push(step, dealt(state, ranks)[peers.rank])
            return len(mortal.calls)
        finally:
            mortal.close()
            registry.close()

    calls = outcomes(life, LocalGroup(ranks))
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("after", [False, True])
@EVERY_CALL
def test_a_job_goes_on_with_other_ranks_wherever_one_of_its_ranks_died(dead: int, after: bool, every: bool) -> None:
    """Nothing is committed or the version is whole, the other rank hears of it, and 4 or 8 ranks go on.

    The ranks die at other calls, by turns; at every call in the sweep.
    """
    wanted = states(4)
    [count, _] = lives(DictStore(), wanted[:3], 2, None)
    assert isinstance(count, int)
    stride = 1 if every else 6 if after else 4
    for at in range(1 + dead * stride // 2, count + 1, stride):
        store = DictStore()
        found = lives(store, wanted[:3], 2, (dead, at, after))
        other = found[1 - dead]
        late = isinstance(other, int) and len(commits(store)) == 3  # in a keyframe, which costs no version
        assert isinstance(other, PeerLost) or late, (at, other)
        check_store(store)
        known = [wanted[record.step] for record in commits(store)]
        restored(store, known)
        assert [type(one) for one in lives(store, wanted[3:], 4, None)] == [int] * 4, (at, known)
        restored(store, [*known, wanted[3]])


def test_a_job_of_four_goes_on_with_two_and_with_eight() -> None:
    """It fails if changes of several ranks to one group are not put in order, or if each replica is diffed."""
    wanted, store = states(6), DictStore()
    for first, ranks in ((0, 4), (2, 2), (4, 8)):

        def push(registry: Registry, rank: int, first: int = first, ranks: int = ranks) -> None:
            registry.take_over(dealt(wanted[max(0, first - 1)], ranks)[rank])
            for step in range(first, first + 2):
                registry.push(step, dealt(wanted[step], ranks)[rank])

        assert on_ranks([store] * ranks, push, coder="class", keyframe_share=1e9) == [None] * ranks
    restored(store, wanted)


def test_a_second_job_fences_the_first_on_all_its_ranks() -> None:
    wanted, store = states(4), DictStore()

    def first(registry: Registry, rank: int) -> Any:
        registry.push(0, dealt(wanted[0], 2)[rank])
        if rank == 0:

            def second(other: Registry, number: int) -> None:
                other.push(1, dealt(wanted[1], 3)[number])

            assert on_ranks([store] * 3, second) == [None] * 3
        return failed(registry, 2, dealt(wanted[2], 2)[rank]), failed(registry, 3, dealt(wanted[3], 2)[rank])

    found = on_ranks([store] * 2, first)
    alike([one for one, _ in found], Fenced)
    alike([two for _, two in found], Fenced)
    restored(store, wanted[:2])


def gone_on(store: DictStore, state: State) -> None:
    """Push a version as another job, and retire, delete and forget those before it."""
    with quick(store, keyframe_every=1) as other:
        other.push(1, state)
        settle(other)
        for _ in range(2):
            other.gc(RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0), dry_run=False)
        with pytest.raises(Gone):
            other.version(0)


def test_a_rank_that_slept_while_another_job_went_on_and_the_newest_version_was_deleted_is_fenced() -> None:
    wanted, store = states(2), DictStore()
    with quick(store) as before:
        before.push(0, wanted[0])

    class Asleep(FaultStore):
        slept = False

        def get(self, key: str, *arguments: Any, **named: Any) -> bytes:
            if "/log/" in key and not self.slept:
                self.slept = True
                gone_on(store, wanted[1])
            return super().get(key, *arguments, **named)

    def push(registry: Registry, rank: int) -> None:
        registry.push(1, dealt(wanted[1], 2)[rank])

    alike(on_ranks([store, Asleep(store, [])], push), Fenced)


def test_a_coordinator_that_slept_in_a_push_until_the_version_before_was_deleted_is_fenced() -> None:
    wanted, store = states(2), DictStore()
    registries: list[Registry] = []

    class Asleep(FaultStore):
        def put(self, key: str, *arguments: Any, **named: Any) -> Any:
            if "/objects/patch/" in key:
                gone_on(store, wanted[1])
                registries[0].state()  # as another thread of its process may ask
            return super().put(key, *arguments, **named)

    def push(registry: Registry, rank: int) -> None:
        if rank == 0:
            registries.append(registry)
        registry.push(0, dealt(wanted[0], 2)[rank])
        registry.push(1, dealt(wanted[1], 2)[rank])

    alike(on_ranks([Asleep(store, []), store], push), Fenced)


# -- pushes under way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 1, 2])
def test_what_one_rank_had_diffed_before_a_failure_fails_on_all_and_nothing_after_it(late: int) -> None:
    """One rank has three pushes under way when the first of them fails, and the other one ``late`` less."""
    wanted, store, told = states(6), GateStore(), threading.Barrier(2, timeout=PATIENCE)
    with store.shut():

        def push(registry: Registry, rank: int) -> Any:
            registry.push(0, dealt(wanted[0], 2)[rank])
            ahead = 3 if rank == 0 else 3 - late
            futures = [registry.push(n, dealt(wanted[n], 2)[rank], wait=False) for n in range(1, 1 + ahead)]
            if rank == 0:
                assert store.reached.wait(PATIENCE)
                store.down = True
                told.wait()
                store.open()
            else:
                told.wait()
            errors = [futures[0].exception()]
            futures += [registry.push(n, dealt(wanted[n], 2)[rank], wait=False) for n in range(1 + ahead, 4)]
            errors += [future.exception() for future in futures[1:]]
            store.down = False
            return errors, failed(registry, 5, dealt(wanted[5], 2)[rank])

        found = on_ranks([store] * 2, push, max_pending=3)
    for number in range(3):
        said = alike([errors[number] for errors, _ in found], StoreUnavailable)
        assert number == 0 or "since a push before it failed" in said
    assert [error for _, error in found] == [None, None]
    restored(store, [wanted[0], wanted[5]])


class LapsingPeers(MortalPeers):
    """A rank's end of a group, whose process ends when the others agree on what a failure took along."""

    def all_gather(self, data: Bytes, what: str = "") -> list[bytes]:
        if what == "failure":
            self.close()
            raise Death(what)
        return super().all_gather(data, what)


def test_what_a_failure_took_along_is_told_that_a_rank_died_meanwhile() -> None:
    """The handle is over: that the next push carries its changes would be wrong."""
    wanted, store = states(3), GateStore()

    def life(peers: LocalPeers) -> Any:
        registry = quick(store, peers=LapsingPeers(peers) if peers.rank else peers, max_pending=3)
        registry.push(0, dealt(wanted[0], 2)[peers.rank])
        if peers.rank:
            return registry.push(1, dealt(wanted[1], 2)[1], wait=False).exception(PATIENCE)
        with store.shut():
            futures = [registry.push(n, dealt(wanted[n], 2)[0], wait=False) for n in (1, 2)]
            store.down = True
        errors = [future.exception(PATIENCE) for future in futures]
        peers.close()
        return errors

    first, second = outcomes(life, LocalGroup(2))[0]
    assert isinstance(first, StoreUnavailable)
    assert isinstance(second, PeerLost)
    assert second.ranks == (1,)


def test_a_failure_that_nobody_has_seen_is_raised_by_the_same_call_on_all_ranks() -> None:
    wanted, store, meet = states(8), GateStore(), threading.Barrier(2, timeout=PATIENCE)

    def push(registry: Registry, rank: int) -> Any:
        registry.push(0, dealt(wanted[0], 2)[rank])
        store.down = True
        registry.push(1, dealt(wanted[1], 2)[rank], wait=False)
        errors = []
        for step in range(2, 8):
            if step == 4:
                meet.wait()
                store.down = False
                meet.wait()
            try:
                registry.push(step, dealt(wanted[step], 2)[rank], wait=False)
            except StoreUnavailable as error:
                errors.append((step, str(error)))
        return errors

    def life(peers: LocalPeers) -> Any:
        registry = quick(store, peers=peers, max_pending=2)
        errors = push(registry, peers.rank)
        unseen = None
        try:
            registry.close()
        except StoreUnavailable as error:
            unseen = str(error)
        return errors, unseen

    first, second = outcomes(life, LocalGroup(2))
    assert first == second
    assert first[0][0][0] == 3
    check_store(store)
    assert commits(store)[-1].step == 7


def test_a_rank_that_can_not_make_its_temporary_file_fails_the_push_alike_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, wanted, real, tries = DictStore(), states(1), tempfile.TemporaryFile, []

    def full_once(*args: Any, **kwargs: Any) -> Any:
        tries.append(args)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(sharded_keyframe, "tempfile", SimpleNamespace(TemporaryFile=full_once))
    ranks = dealt(wanted[0], 2)
    both: list[list[BaseException | None]] = [[], []]

    def push(registry: Registry, rank: int) -> None:
        put(ranks[rank], wanted[0])
        both[rank] = [failed(registry, 0, ranks[rank]), failed(registry, 1, ranks[rank])]

    assert on_ranks([store] * 2, push) == [None, None]
    assert "No space left on device" in alike([first for first, _ in both], StoreUnavailable)
    assert [second for _, second in both] == [None, None]
    restored(store, wanted)


def test_masters_are_rounded_and_ranks_without_cells_and_frozen_tensors_take_part() -> None:
    wanted = [{"w": np.arange(6, dtype="f4") * 1.001 + n, "still": np.ones((2, 3), "f4")} for n in range(3)]
    alone, together = DictStore(), DictStore()
    with quick(alone, dtype="bf16") as registry:
        for step, state in enumerate(wanted):
            registry.push(step, state)
    ends = [(0, 4), (4, 6), (6, 6)]
    ranks = [{"w": Slice(np.zeros(b - a, "f4"), of=(6,), at=(a,)), "still": np.ones((2, 3), "f4")} for a, b in ends]

    def push(registry: Registry, rank: int) -> list[str]:
        found = []
        for step, state in enumerate(wanted):
            put(ranks[rank], state)
            found.append(registry.push(step, ranks[rank]).digest)
        return found

    found = on_ranks([together] * 3, push, dtype="bf16")
    assert found == [[record.digest for record in commits(alone)]] * 3


class WirePeers(MortalPeers):
    """A rank's end of a group on a wire that changes one byte of the changes that it sends, once."""

    broken = False

    def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
        sent = [bytes(part) for part in parts]
        if what == "changes" and self.broken and sent[0]:
            self.broken, sent[0] = False, sent[0][:-1] + bytes([sent[0][-1] ^ 64])
        return super().exchange(sent, what)


def errors_over(wire: type[WirePeers], store: DictStore, wanted: Sequence[Any], coder: CoderChoice) -> list[Any]:
    """Return what each of two ranks raises where a message of one is damaged; later pushes go on."""

    def life(peers: LocalPeers) -> Any:
        broken = wire(peers)
        with quick(store, peers=broken, coder=coder) as registry:
            registry.push(0, dealt(wanted[0], 2)[peers.rank])
            broken.broken = peers.rank == 1
            error = failed(registry, 1, dealt(wanted[1], 2)[peers.rank])
            for step in (1, 2):
                registry.push(step, dealt(wanted[step], 2)[peers.rank])
            return error

    return outcomes(life, LocalGroup(2))


def test_changes_that_were_damaged_on_their_way_are_found_by_their_sums() -> None:
    """It fails if the sum of what was coded is not compared with that of what the ranks found."""
    wanted, store = states(3), DictStore()

    assert "what was coded is not what the ranks found changed" in alike(
        errors_over(WirePeers, store, wanted, "gap"), Conflict
    )
    restored(store, wanted)


def test_old_cells_that_were_damaged_on_their_way_are_found_before_they_are_coded_by_class() -> None:
    """The coder counts the classes of the old cells, and then meets them in the group: there it writes as many."""
    wanted, store = states(3), DictStore()

    class Wire(WirePeers):
        def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
            sent = [bytearray(part) for part in parts]
            if what == "changes" and self.broken and sent[0]:
                fragments, cells = struct.unpack_from("<II", sent[0])
                self.broken, at = False, 8 + 8 * fragments + 4 * cells
                sent[0][at] ^= 64
            return super().exchange([bytes(part) for part in sent], what)

    found = alike(errors_over(Wire, store, wanted, "class"), CorruptObject)
    assert re.search(r"the cells of group \d+ that ranks sent are not those that they found changed", found)
    restored(store, wanted)
