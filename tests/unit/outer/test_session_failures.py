"""Sessions whose store fails, who come too late, who wait in vain, who begin at the same moment; in one thread."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from pulse_registry.errors import InvalidArgument, QuorumLost, StoreUnavailable
from pulse_registry.options import Options, PushOptions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, MemoryStore, PrefixStore, Store, WrapperStore
from pulse_registry.testing import Fault, FaultStore
from pulse_schemas.outer import MOST_MEMBERS, JoinRecord
from tests.support.parties import Party, Trainer, drawn, same


def test_when_the_store_fails_between_two_steps_the_model_is_at_the_first_and_nothing_is_sent_twice() -> None:
    party, failing = Party(), [False]
    fault = Fault("fail_before", "get", matches=lambda _, key: failing[0] and "/000000000002-" in key)
    one, late = party.trainer("a", 1), party.trainer("b", 2, FaultStore(party.store, [fault]))
    one.outer.join()
    late.outer.join()
    one.round()
    one.round()
    failing[0] = True
    late.train()
    with pytest.raises(StoreUnavailable):
        late.outer.step()
    collected = late.outer.weights.residual.copy()
    assert late.outer.round == 1
    assert late.model["w"].tobytes() == late.outer.weights.theta.tobytes()
    failing[0] = False
    assert not late.outer.contribute().counts  # as it is told to do: round 2 is over as well
    assert late.outer.weights.residual.tobytes() == collected.tobytes()
    assert late.follow().round == 2
    same(one, late)


def test_who_comes_too_late_sends_what_it_has_with_the_open_round_at_once() -> None:
    party = Party(grace=60.0)
    one, late = party.joined("ab")
    one.round()
    one.round()
    party.meanwhile = one.round  # the others go on while the late one waits for the round's end
    result = late.round()
    assert (result.round, result.counts, set(result.members), result.late) == (3, True, {"a", "b"}, ())
    same(one, late)


def test_a_round_without_its_quorum_says_whom_it_waits_for() -> None:
    party = Party(quorum=2)
    one, other = party.joined("ab")

    def comes_after_an_hour() -> None:
        if party.now > 3600.0 and other.outer.steps == 0:
            other.train()
            other.outer.contribute()

    party.meanwhile = comes_after_an_hour
    assert set(one.round().members) == {"a", "b"}
    waited = [event.message for event in party.told if event.kind == "round_waits"]
    assert len(waited) == 6  # after a minute, and each time after twice as long
    assert "round 1 waits for b; it has 1 contributions, and needs 2" in waited[0]


def test_who_is_left_without_a_quorum_is_told_after_its_grace_and_loses_nothing() -> None:
    party = Party(quorum=2, grace=60.0)
    one, other = party.joined("ab")
    other.contribute()
    one.round()
    other.follow()
    other.outer.leave()
    began = party.now
    one.train()
    with pytest.raises(QuorumLost, match=r"round 2 waits for others to join; it has 1 .* needs 2; b left.*state_dict"):
        one.outer.step()
    assert 60.0 <= party.now - began < 70.0
    with pytest.raises(QuorumLost):
        one.outer.finish()
    new = party.trainer("c", 3)
    new.outer.join()
    new.train()
    new.outer.contribute()
    assert one.outer.finish().counts
    assert set(new.follow().members) == {"a", "c"}
    same(one, new)


def test_who_waits_for_members_that_have_died_is_told_after_the_silence_and_loses_nothing() -> None:
    party = Party(quorum=2, silence=600.0)
    one, other = party.joined("ab")
    other.contribute()
    one.round()
    other.follow()  # and dies
    one.train()
    began = party.now
    for waits in (1, 2):
        with pytest.raises(QuorumLost, match=r"round 2 waits for b; .* nobody has said anything for 600 seconds"):
            one.outer.finish()
        assert waits * 600.0 <= party.now - began < waits * 610.0  # each call waits as long once more
    again = party.trainer("b", 3)
    again.outer.join()
    again.train()
    again.outer.contribute()
    assert one.outer.finish().counts
    again.follow()
    same(one, again)


def test_who_says_something_is_waited_for_however_long_the_quorum_takes() -> None:
    party = Party(quorum=3, silence=600.0)
    one, other, third = party.joined("abc")
    at(party, (500.0, other.contribute), (1000.0, third.contribute))
    assert set(one.round().members) == {"a", "b", "c"}
    assert party.now >= 1000.0


def test_a_round_that_has_its_quorum_is_closed_after_the_grace_however_short_the_silence() -> None:
    party = Party(quorum=1, grace=60.0, silence=1.0)
    one, _ = party.joined("ab")
    assert set(one.round().members) == {"a"}


def at(party: Party, *planned: tuple[float, Callable[[], object]]) -> None:
    """Let things happen at their times, one after the other, while somebody waits."""
    left = list(planned)

    def meanwhile() -> None:
        if left and party.now >= left[0][0]:
            left.pop(0)[1]()

    party.meanwhile = meanwhile


def test_who_leaves_and_comes_back_within_the_grace_is_waited_for() -> None:
    party = Party(quorum=2, grace=60.0)
    one, other = party.joined("ab")
    at(party, (5.0, other.outer.leave), (60.0, other.outer.join), (100.0, other.contribute))
    assert set(one.round().members) == {"a", "b"}
    assert party.now >= 100.0


def test_who_joins_where_others_have_left_before_waits_for_them() -> None:
    party = Party(quorum=2, grace=60.0)
    one, other = party.joined("ab")
    other.outer.leave()
    one.outer.leave()
    one.outer.join()
    at(party, (3600.0, other.outer.join), (3601.0, other.contribute))
    assert set(one.round().members) == {"a", "b"}
    assert party.now >= 3600.0


def test_who_comes_to_a_full_run_is_told_and_nothing_is_written() -> None:
    party = Party()
    [one] = party.joined("a")
    log = OuterLog(PrefixStore(party.store, "run"), "run")
    one.outer.leave()
    for number in range(MOST_MEMBERS):
        log.append(lambda _, common, number=number: JoinRecord(**common, member=f"m{number}"))  # type: ignore[misc]
    newest = log.refresh().seq
    for trainer in (one, party.trainer("new", 2)):
        with pytest.raises(InvalidArgument, match="run 'run': the run has 256 members: let one leave first"):
            trainer.outer.join()
    assert log.refresh().seq == newest


def test_an_interrupt_while_waiting_leaves_all_as_it_is() -> None:
    party = Party(quorum=2)
    one, other = party.joined("ab")

    def interrupt() -> None:
        raise KeyboardInterrupt

    party.meanwhile = interrupt
    with pytest.raises(KeyboardInterrupt):
        one.round()
    other.contribute()
    assert one.follow().counts
    assert other.follow().counts
    same(one, other)


@pytest.mark.parametrize("call", [1, 2, 3, 5, 8, 9, 10, 11, 12, 13])
def test_members_that_begin_an_empty_run_at_the_same_moment_begin_with_one_version(call: int) -> None:
    """Another one, of other weights, joins before any call that the first one makes."""
    party, others, calls = Party(quorum=2), list[Trainer](), [0]

    def begins(*_: str) -> bool:
        calls[0] += 1
        if calls[0] == call:
            others.append(party.trainer("b", 2))
            others[0].model["w"] += 1.0
            others[0].outer.join()
        return False

    one = party.trainer("a", 1, FaultStore(party.store, [Fault("fail_before", matches=begins)]))
    one.outer.join()
    [other] = others
    for _ in range(2):
        for each in (one, other):
            each.contribute()
        for each in (one, other):
            assert each.follow().counts
        same(one, other)
    for each in (one, other):
        each.outer.leave()
    assert [version.version for version in one.registry.versions()] == [0, 1, 2]


def test_a_writer_that_was_fenced_leaves_the_other_one_as_much_time_as_it_took_itself() -> None:
    party = Party(quorum=2)
    one, other = party.joined("ab")
    one.contribute()
    other.contribute()
    push, began = one.outer.run.versions.push, list[float]()

    def slowly(version: int, weights: OuterWeights) -> None:
        began.append(party.now)
        party.now += 500.0
        if len(began) > 1:
            push(version, weights)  # at first, another one takes over meanwhile

    one.outer.run.versions.push = slowly  # type: ignore[method-assign]
    one.follow()
    one.contribute()
    first, second = began
    assert 1000.0 <= second - first < 1001.0


def test_who_leaves_in_the_middle_of_a_round_is_in_it_and_nobody_waits_for_it() -> None:
    party = Party(quorum=1, grace=60.0)
    one, other = party.joined("ab")
    other.contribute()
    other.outer.leave()
    result = one.round()
    assert (set(result.members), result.late) == ({"a", "b"}, ())
    assert set(one.round().members) == {"a"}
    other.outer.join()
    same(one, other)
    for each in (other, one):  # which waits for the other one from the next round on
        each.contribute()
    for each in (one, other):
        assert set(each.follow().members) == {"a", "b"}
    same(one, other)


def test_two_sessions_of_one_registry_are_two_members() -> None:
    party = Party(quorum=2)
    one = party.trainer("a", 1)
    other = Trainer(one.registry.outer(model := drawn(1), member="b", inner_steps=1, quorum=2), model, 2, one.registry)
    for each in (one, other):
        each.outer.join()
    for _ in range(2):
        for each in (one, other):
            each.contribute()
        for each in (one, other):
            assert set(each.follow().members) == {"a", "b"}
        same(one, other)
    for each in (one, other):
        each.outer.leave()
    assert len(one.registry.versions()) == 3


class Seen(WrapperStore):
    """A store that keeps the names of the contributions that were fetched."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.fetched = list[str]()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if "/objects/contribution/" in key:
            self.fetched.append(key.rpartition("/")[2].split("-")[1])
        return super().get(key, byte_range, max_bytes=max_bytes)


@pytest.mark.parametrize("values", ["levels", "float32"])
@pytest.mark.parametrize("weighting", ["equal", "steps"])
def test_a_member_fetches_what_others_have_sent_and_not_what_it_has(values: str, weighting: str) -> None:
    party = Party(quorum=2, values=values, weighting=weighting)
    seen = Seen(party.store)
    one, other = party.trainer("a", 1, seen), party.trainer("b", 2)
    for trainer in (one, other):
        trainer.outer.join()
    for _ in range(3):
        one.contribute()
        other.contribute()
        one.follow()
        other.follow()
        same(one, other)
    assert seen.fetched == ["b", "b", "b"]


def test_what_a_twin_has_sent_under_the_same_name_is_fetched() -> None:
    party = Party(quorum=2)
    one, other = party.joined("ab")
    one.train()
    seen = Seen(party.store)
    twin = party.trainer("a", 3, seen)
    one.outer.contribute()
    twin.outer.join()
    other.contribute()
    twin.follow()
    assert sorted(seen.fetched) == ["a", "b"]
    other.follow()
    same(other, twin)


def test_a_first_version_in_float32_is_refused_before_it_is_there() -> None:
    store = MemoryStore(uuid.uuid4().hex)
    with Registry(store, "run", Options(push=PushOptions(dtype="keep"))) as registry:
        with pytest.raises(InvalidArgument, match=r"dtype='keep'.*BF16"):
            registry.outer(drawn(1), member="a").join()
        assert registry.versions() == []
