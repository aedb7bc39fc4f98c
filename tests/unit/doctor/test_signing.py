"""The checks on signed URLs, against a server that leaves out one part of the checking at a time."""

from __future__ import annotations

import itertools
import time

import pytest

from pulse_registry.doctor import CHECKS, Examination, Finding, Level, Plan
from pulse_registry.store import MemoryStore
from tests.unit.doctor.signer import Leak, signing_store

SIGNED = [check for check in CHECKS if check.name.startswith("signed")]
CLOCK = [check for check in CHECKS if check.name == "clocks agree"]
_NAMES = itertools.count()

LEAKS: list[tuple[Leak, str, set[str]]] = [
    ("unreadable", "signed gets are bounded", {"does not read the object", "does not read a range"}),
    ("range", "signed gets are bounded", {"does not read a range"}),
    ("expiry", "signed gets are bounded", {"works after its time"}),
    ("key", "signed gets are bounded", {"works for another key"}),
    ("taken", "signed puts are conditional", {"overwrites a taken key"}),
    ("bytes", "signed puts are conditional", {"takes other bytes"}),
    ("checksum", "signed puts are conditional", {"takes another checksum", "takes another length"}),
    ("condition", "signed puts are conditional", {"works without its condition"}),
]


def examine(leak: Leak) -> dict[str, Finding]:
    offset = 0.0

    def now() -> float:
        return time.time() + offset

    def pause(seconds: float) -> None:
        nonlocal offset
        offset += seconds

    store = MemoryStore(f"signing/{next(_NAMES)}")
    with (
        signing_store(store, leak, now) as signing,
        Examination(signing, plan=Plan(), checks=SIGNED, pause=pause) as examination,
    ):
        findings = {finding.check: finding for finding in examination.findings()}
    assert [*store.list("")] == []
    return findings


def test_a_server_that_checks_all_is_fine() -> None:
    assert {finding.level for finding in examine("none").values()} == {Level.OK}


@pytest.mark.parametrize(("leak", "check", "problems"), LEAKS, ids=[leak for leak, _, _ in LEAKS])
def test_a_server_that_leaves_out_one_check_is_found_out(leak: Leak, check: str, problems: set[str]) -> None:
    findings = examine(leak)
    warned = [name for name, finding in findings.items() if finding.level is not Level.OK]
    assert warned == [check]
    assert set(str(findings[check].evidence["wrong"]).split("; ")) == problems


def test_a_server_that_checks_no_signature_is_found_out_in_both() -> None:
    findings = examine("signature")
    assert "works with a changed signature" in str(findings["signed gets are bounded"].evidence["wrong"])
    assert "works without its condition" in str(findings["signed puts are conditional"].evidence["wrong"])


@pytest.mark.parametrize(("skew", "level"), [(0.0, Level.OK), (120.0, Level.WARN), (-120.0, Level.WARN)])
def test_the_clock_is_read_off_an_answer(skew: float, level: Level) -> None:
    with (
        signing_store(MemoryStore(f"signing/{next(_NAMES)}"), "none") as signing,
        Examination(signing, checks=CLOCK, now=lambda: time.time() + skew) as examination,
    ):
        finding, _ = examination.findings()
    assert finding.level is level


def test_a_server_that_is_gone_makes_a_warning_that_shows_no_url() -> None:
    with signing_store(MemoryStore(f"signing/{next(_NAMES)}"), "none") as signing:
        pass
    with Examination(signing, checks=SIGNED) as examination:
        first, *_ = examination.findings()
    assert first.level is Level.WARN
    assert "got no answer" in first.verdict
    assert "Signature" not in first.verdict
