"""Every check fails on a store that breaks exactly what it is about, and on no other."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pulse_registry.doctor import CHECKS, Examination, Level, Plan
from pulse_registry.doctor.examination import CLEARED
from pulse_registry.doctor.report import WRITABLE
from pulse_registry.errors import AccessDenied, InvalidArgument
from pulse_registry.store import FileStore, MemoryStore, Store
from pulse_registry.testing import Fault, FaultStore
from tests.unit.doctor import broken

PLAN = Plan(rounds=6, racers=8, samples=12, listed=150, large_bytes=300_000)

BREAKS: dict[str, tuple[Callable[[MemoryStore], Store], set[str]]] = {
    "ignores the condition": (
        broken.IgnoringStore,
        {
            "creates refuse taken keys",
            "creates have one winner",
            "lost answers can be told",
            "large creates have one winner",
        },
    ),
    "looks before it writes": (lambda inner: broken.RacyStore(inner, PLAN.racers), {"creates have one winner"}),
    "replaces the winner's bytes": (broken.ClobberingStore, {"creates have one winner"}),
    "lets nobody win": (broken.RefusingStore, {"creates have one winner"}),
    "ignores the condition of parts": (broken.PartsStore, {"large creates have one winner"}),
    "loses what was not answered": (broken.ForgetfulStore, {"lost answers can be told"}),
    "writes in halves": (broken.SlowWriterStore, {"puts are whole"}),
    "deletes before it writes": (broken.VanishingStore, {"puts are whole"}),
    "reads what was before": (broken.StaleReadStore, {"reads see writes"}),
    "remembers what was missing": (broken.StaleMissStore, {"reads see writes"}),
    "lists what was before": (broken.StaleListStore, {"listings see writes"}),
    "keeps what was deleted": (broken.UndeadStore, {"reads see deletes"}),
    "lists by folders": (broken.TreeStore, {"names that begin alike are listed"}),
    "lists backwards": (broken.UnsortedStore, {"listings are complete"}),
    "lists one page": (broken.OnePageStore, {"listings are complete"}),
    "lists from the start": (broken.FromStartStore, {"listings go on after a key"}),
    "lists from the key": (broken.FromKeyStore, {"listings go on after a key"}),
    "reads no ranges": (broken.NoRangeStore, {"ranges are exact"}),
    "cuts ranges at the end": (broken.CutRangeStore, {"ranges are exact"}),
}


def denied(verb: str, key: str) -> AccessDenied:
    return AccessDenied(f"no {verb} of {key}")


def examine(store: Store, plan: Plan = PLAN) -> dict[str, Level]:
    # The clock stands still: on a busy machine every store takes long to answer.
    with Examination(store, plan=plan, rng=random.Random(0), clock=lambda: 0.0) as examination:
        report = examination.report()
    assert [finding.check for finding in report.findings] == [*(check.name for check in CHECKS), CLEARED]
    assert all(finding.advice for finding in report.findings if finding.level in (Level.WARN, Level.UNSAFE))
    return {finding.check: finding.level for finding in report.findings}


def objects(store: Store) -> list[str]:
    return [*store.list("")]


@pytest.mark.parametrize("name", BREAKS)
def test_a_store_that_breaks_one_promise_fails_exactly_that_check(name: str) -> None:
    make, expected = BREAKS[name]
    inner = MemoryStore(f"doctor/broken/{name.replace(' ', '-')}")
    levels = examine(make(inner))
    bad = {check for check, level in levels.items() if level in (Level.WARN, Level.UNSAFE)}
    assert bad == expected
    advisory = {check.name for check in CHECKS if not check.essential}
    assert all(levels[check] is (Level.WARN if check in advisory else Level.UNSAFE) for check in bad)
    assert objects(inner) == []


def test_a_memory_store_is_safe() -> None:
    levels = examine(MemoryStore("doctor/good"))
    assert set(levels.values()) == {Level.OK, Level.SKIPPED}
    assert {check for check, level in levels.items() if level is Level.SKIPPED} == {
        "signed gets are bounded",
        "signed puts are conditional",
    }


def test_a_file_store_is_safe_and_tells_its_time(tmp_path: Path) -> None:
    levels = examine(FileStore(tmp_path))
    assert levels.pop("signed gets are bounded") is levels.pop("signed puts are conditional") is Level.SKIPPED
    assert set(levels.values()) == {Level.OK}
    assert [*tmp_path.iterdir()] == []


def test_a_second_client_with_a_cache_of_its_own_is_noticed() -> None:
    inner = MemoryStore("doctor/observer")
    with Examination(inner, observer=broken.StaleReadStore(inner), plan=PLAN) as examination:
        report = examination.report()
    assert [finding.check for finding in report.findings if finding.level is Level.UNSAFE] == ["reads see writes"]
    assert not report.safe
    assert "reads see writes" in report.verdict


def test_answers_that_get_lost_in_a_race_make_no_store_unsafe() -> None:
    inner = MemoryStore("doctor/lossy")
    lossy = FaultStore(inner, [Fault("fail_after", verb="put", probability=0.3)], seed=3)
    with Examination(lossy, plan=PLAN, pause=lambda _: None, rng=random.Random(0)) as examination:
        levels = {finding.check: finding.level for finding in examination.findings()}
    assert levels["creates have one winner"] is Level.OK
    assert [action for action, _, key in lossy.fired if "creation/race/" in key]


def test_a_check_that_the_store_refuses_is_not_taken_for_a_good_one() -> None:
    store = FaultStore(
        MemoryStore("doctor/denied"),
        [
            Fault("fail_before", matches=lambda verb, key: "ranges/" in key and verb == "get", error=denied),
            Fault("fail_before", matches=lambda verb, key: "speed/" in key and verb == "put", error=denied),
        ],
    )
    levels = examine(store)
    assert levels["ranges are exact"] is Level.UNSAFE
    assert levels["small objects are quick"] is levels["large objects are quick"] is Level.WARN


def test_what_may_not_be_deleted_is_said_to_be_left() -> None:
    store = FaultStore(MemoryStore("doctor/undeletable"), [Fault("fail_before", verb="delete", error=denied)])
    with Examination(store, plan=PLAN) as examination:
        report = examination.report()
    assert (report.findings[-1].check, report.findings[-1].level) == (CLEARED, Level.WARN)
    assert examination.folder in report.findings[-1].verdict
    assert "--clean" in report.findings[-1].advice


def test_keys_that_may_do_nothing_are_an_error_and_no_finding() -> None:
    faults = [Fault("fail_before", matches=lambda verb, key: verb in ("put", "list"), error=denied)]
    store = FaultStore(MemoryStore("doctor/closed"), faults)
    with pytest.raises(AccessDenied, match="no put of"), Examination(store, plan=PLAN) as examination:
        examination.report()


def test_keys_that_may_only_read_are_a_finding_and_leave_nothing_to_clear() -> None:
    faults = [Fault("fail_before", matches=lambda verb, key: verb in ("put", "delete"), error=denied)]
    store = FaultStore(MemoryStore("doctor/reader"), faults)
    with Examination(store, plan=PLAN) as examination:
        report = examination.report()
    (finding,) = report.findings
    assert (finding.check, finding.level) == (WRITABLE, Level.UNSAFE)
    assert "no put of" in finding.verdict
    assert "keys that may write" in finding.advice
    assert not report.safe
    assert report.verdict.endswith("is not shown: these keys may not write")


@pytest.mark.parametrize("skew", [-100.0, 100.0])
def test_a_clock_that_is_a_minute_off_is_warned_of(tmp_path: Path, skew: float) -> None:
    import time

    checks = [check for check in CHECKS if check.name == "clocks agree"]
    with Examination(FileStore(tmp_path), checks=checks, now=lambda: time.time() + skew) as examination:
        finding, _ = examination.findings()
    assert finding.level is Level.WARN
    assert "NTP" in finding.advice
    assert float(finding.evidence["skew, s"]) == pytest.approx(100, abs=3)


def test_a_slow_store_is_warned_of() -> None:
    ticks = iter(range(10**9))
    checks = [check for check in CHECKS if check.name.endswith("are quick")]
    store = MemoryStore("doctor/slow")
    with Examination(store, plan=PLAN, checks=checks, clock=lambda: float(next(ticks))) as examination:
        assert [finding.level for finding in examination.findings()] == [Level.WARN, Level.WARN, Level.OK]


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"racers": 1}, {"racers": 513}, {"samples": 1}, {"listed": 1}])
def test_a_plan_with_nothing_to_see_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        Plan(**wrong)
