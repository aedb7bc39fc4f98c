"""Signed outer rounds: each member by keys that are pinned for it, and a log that is never less than it was."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.errors import Behind, CorruptObject, Distrust, InvalidArgument, Untrusted
from pulse_registry.format import keys
from pulse_registry.outer.append_guard import OuterAppendGuard
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.state import OuterState
from pulse_registry.signing import Pin, PinGuard, SigningKey, Trust
from pulse_registry.store import FileStore, MemoryStore, PrefixStore, Store
from pulse_schemas import open_sealed
from pulse_schemas.outer import CloseRecord, JoinRecord, LeaveRecord, OuterRecord, Rates, RatesRecord, StartRecord
from tests.security.signing.actors import COMPACTOR, STRANGER, TRAINER, key
from tests.support.outer_rounds import make_rounds

RATES = Rates(inner_steps=8, rate=0.7, momentum=0.9)
EU, US = key(11), key(12)
PINS = (f"{EU.public}=outer:eu-1", f"{US.public}=outer:us-1", f"{TRAINER.public}=outer,commit,epoch")


def empty() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex)


def log(store: Store, signer: SigningKey | None, *pins: str, state: Path | None = None) -> OuterLog:
    """Return the log as one sees it who signs with a key, and believes these pins."""
    guard = PinGuard(Trust(pins), store.url, "run", state, outer=True) if pins else None
    return OuterLog(store, "run", signer, guard)


def start(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
    if state.start is not None:
        return None
    return StartRecord(
        **common, version=0, layout="0" * 64, digest="0" * 32, rates=RATES, gain=7.0, values="levels",
        exponent=-20, quorum=1, patience=2, weighting="equal",
    )  # fmt: skip


def join(member: str) -> Any:
    return lambda _, common: JoinRecord(**common, member=member)


def leave(member: str) -> Any:
    return lambda state, common: LeaveRecord(**common, member=member, term=state.members[member].term)


def close(_: OuterState, common: dict[str, Any]) -> OuterRecord:
    return CloseRecord(**common, round=1)


def rates(_: OuterState, common: dict[str, Any]) -> OuterRecord:
    return RatesRecord(**common, round=2, rates=RATES)


def begun(store: Store) -> OuterLog:
    """Let a member of its own key begin the rounds, and join."""
    mine = log(store, EU, *PINS)
    mine.append(start)
    mine.append(join("eu-1"))
    return mine


def test_members_believe_each_other_by_the_keys_that_are_pinned_for_them() -> None:
    store = empty()
    begun(store)
    other = log(store, US, *PINS)
    other.append(join("us-1"))
    other.append(close)
    other.append(leave("us-1"))
    assert log(store, TRAINER, *PINS).append(rates) is not None
    reader = log(store, None, *PINS)
    assert reader.refresh().seq == 5
    assert sorted(reader.state.members) == ["eu-1", "us-1"]


@pytest.mark.parametrize("make", [join("us-1"), leave("us-1"), rates])
def test_a_member_says_nothing_in_the_name_of_another_and_changes_no_rates(make: Any) -> None:
    store = empty()
    begun(store)
    log(store, US).append(join("us-1"))
    log(store, EU).append(make)  # it does not ask what others believe
    reader = log(store, None, *PINS)
    with pytest.raises(Untrusted, match=r"outer record 3 .* may not sign") as raised:
        reader.refresh()
    assert raised.value.reason is Distrust.WRONG_KEY
    assert reader.state.seq == 2
    assert reader.state.members["us-1"].left is False


@pytest.mark.parametrize("signer", [None, STRANGER, COMPACTOR])
def test_what_nobody_or_a_stranger_signed_is_refused_and_nothing_is_folded(signer: SigningKey | None) -> None:
    store = empty()
    begun(store)
    heedless = log(store, signer)
    heedless.refresh()
    heedless.signed = False
    heedless.append(join("eu-1"))
    reader = log(store, None, *PINS, f"{COMPACTOR.public}=attach")
    with pytest.raises(Untrusted, match="outer record 2"):
        reader.refresh()
    assert reader.state.seq == 1
    term = reader.state.members["eu-1"].term
    with pytest.raises(Untrusted):
        reader.refresh()
    assert reader.state.members["eu-1"].term == term


@pytest.mark.parametrize("signer", [None, EU, STRANGER])
def test_a_member_writes_nothing_that_the_others_would_refuse(signer: SigningKey | None) -> None:
    store = empty()
    begun(store)
    with pytest.raises(Untrusted):
        log(store, signer, *PINS).append(join("us-1"))
    assert begun(store).state.seq == 2  # its own join


def test_without_pins_nothing_goes_unsigned_into_rounds_that_are_signed() -> None:
    store = empty()
    begun(store)
    with pytest.raises(Untrusted, match="PULSE_SIGNING_KEY"):
        log(store, None).append(join("us-1"))
    assert log(store, None).refresh().seq == 1
    assert log(store, US).append(join("us-1")) is not None


def test_a_log_that_was_rolled_back_is_refused_after_a_restart(tmp_path: Path) -> None:
    store = empty()
    begun(store).append(close)
    log(store, None, *PINS, state=tmp_path).refresh()
    store.delete("outer/log/000000000002.json")
    with pytest.raises(Untrusted, match="rolled back: outer record 2") as raised:
        log(store, None, *PINS, state=tmp_path).refresh()
    assert raised.value.reason is Distrust.ROLLBACK


def test_a_copy_that_lags_is_waited_for(tmp_path: Path) -> None:
    store, mirror = empty(), empty()
    begun(store)
    first = keys.OUTER + keys.record_key(0)
    mirror.put(first, store.get(first))
    assert log(store, None, *PINS, state=tmp_path).refresh().seq == 1
    with pytest.raises(Behind, match="ends at outer record 0, and outer record 1 was seen"):
        log(mirror, None, *PINS, state=tmp_path).refresh()
    second = keys.OUTER + keys.record_key(1)
    mirror.put(second, store.get(second))
    assert log(mirror, None, *PINS, state=tmp_path).refresh().seq == 1


def test_another_record_in_the_place_of_one_that_was_seen_is_refused_and_kept(tmp_path: Path) -> None:
    store = empty()
    begun(store).append(close)
    log(store, None, *PINS, state=tmp_path).refresh()
    store.delete("outer/log/000000000002.json")
    begun(store)  # joins again, in the place of what was deleted
    with pytest.raises(Untrusted, match="forked") as raised:
        log(store, None, *PINS, state=tmp_path).refresh()
    assert raised.value.reason is Distrust.FORK
    assert len([*tmp_path.rglob("fork-*.json")]) == 2


def test_a_record_that_is_missing_before_one_that_was_seen_is_told_as_missing(tmp_path: Path) -> None:
    store = empty()
    begun(store).append(close)
    log(store, None, *PINS, state=tmp_path).refresh()
    store.delete("outer/log/000000000001.json")
    with pytest.raises(CorruptObject, match="record 1 is missing"):
        log(store, None, *PINS, state=tmp_path).refresh()


def test_what_was_seen_of_outer_rounds_is_kept_apart_from_what_was_seen_of_the_run(tmp_path: Path) -> None:
    store = empty()
    begun(store)
    log(store, None, *PINS, state=tmp_path).refresh()
    guard = PinGuard(Trust(PINS), store.url, "run", tmp_path)
    assert guard.begin() is None


def test_pins_of_members_are_read_and_written_alike() -> None:
    for text in (f"{EU.public}=outer:eu-1", f"{EU.public}=commit,outer:eu-1,outer:eu-2", f"{EU.public}=outer"):
        assert str(Pin.parse(text)) == text
    assert Pin.parse(EU.public).may_sign("outer:eu-1")  # a key without limits says all
    assert not Pin.parse(f"{EU.public}=commit").may_sign("outer:")
    for wrong in ("outer:", "outer:EU", "outer:a/b", "start", "join", f"outer:{'a' * 65}"):
        with pytest.raises(InvalidArgument, match="outer:MEMBER"):
            Pin.parse(f"{EU.public}={wrong}")


OWN = "epoch,commit,attach,snapshot"


def test_members_train_with_keys_of_their_own_and_anybody_who_pins_them_can_verify(tmp_path: Path) -> None:
    root, pins = str(tmp_path / "root"), (f"{EU.public}={OWN},outer:eu-1", f"{US.public}={OWN},outer:us-1")
    trust = Trust(pins, state_dir=tmp_path / "seen")
    make_rounds(root, "run", 2, signers={"eu-1": EU, "us-1": US}, trust=trust)
    store = PrefixStore(FileStore(Path(root)), "run")
    reader = OuterLog(store, "run", guard=PinGuard(Trust(pins), root, "run", outer=True))
    assert reader.refresh().open == 3
    signed = [open_sealed(store.get(f"outer/{keys.record_key(seq)}")).signature for seq in range(reader.state.seq + 1)]
    assert {one.public for one in signed if one is not None} == {EU.public, US.public}
    assert None not in signed


def test_a_member_whose_key_is_pinned_for_another_joins_no_rounds(tmp_path: Path) -> None:
    root, pins = str(tmp_path / "root"), (f"{EU.public}={OWN},outer:eu-1", f"{US.public}={OWN},outer:us-1")
    trust = Trust(pins, state_dir=tmp_path / "seen")
    with pytest.raises(Untrusted, match="may not sign for member 'eu-1'"):
        make_rounds(root, "run", 1, members=("eu-1",), signers={"eu-1": US}, trust=trust)
    assert [*FileStore(Path(root)).list("run/outer/log/")] == ["run/outer/log/000000000000.json"]  # anybody may begin


def test_a_service_that_pins_members_admits_each_by_its_own_key() -> None:
    store = empty()
    guarded = OuterAppendGuard(store, "run", PinGuard(Trust(PINS), store.url, "run", outer=True))
    written = empty()
    mine = log(written, EU)
    mine.append(start)
    mine.append(join("eu-1"))
    sealed = written.get("outer/log/000000000000.json")
    guarded.admit(sealed)
    for signer in (None, US, STRANGER):
        other = empty()
        other.put("outer/log/000000000000.json", sealed)
        heedless = log(other, signer)
        heedless.refresh()
        heedless.signed = False
        made = heedless.append(join("eu-1"))
        assert made is not None
        with pytest.raises(InvalidArgument, match="outer record 1 of run 'run'"):
            guarded.admit(other.get("outer/log/000000000001.json"))
    assert [*store.list("outer/log/")] == ["outer/log/000000000000.json"]
    guarded.admit(written.get("outer/log/000000000001.json"))
    assert guarded.state.seq == 1


def test_a_service_without_pins_admits_nothing_unsigned_to_signed_rounds() -> None:
    store, written = empty(), empty()
    guarded = OuterAppendGuard(store, "run")
    log(written, EU).append(start)
    guarded.admit(written.get("outer/log/000000000000.json"))
    heedless = log(written, None)
    heedless.refresh()
    heedless.signed = False
    heedless.append(join("eu-1"))
    with pytest.raises(InvalidArgument, match="is not signed, and record 0 is"):
        guarded.admit(written.get("outer/log/000000000001.json"))
    assert guarded.state.seq == 0
