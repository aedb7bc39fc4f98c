"""The audit looks at outer rounds, too: their records, and what they name and have not retired."""

from __future__ import annotations

import pytest

from pulse_registry.doctor.audit import Defect, DefectKind
from pulse_registry.doctor.audit.run import RunAudit
from pulse_registry.format.keys import layout_key
from pulse_registry.store import Store
from tests.unit.outer.sessions import GEOMETRY, Site
from tests.unit.outer.test_checkpoints import Team, damage
from tests.unit.retention.test_rounds import after, collect


def audited(store: Store, *, contents: bool = True) -> tuple[RunAudit, list[Defect]]:
    """Return what is wrong with outer rounds; the run has no versions here."""
    audit = RunAudit(store, "run")
    return audit, [one for one in audit.defects(contents=contents) if one.key.startswith("outer/")]


@pytest.fixture
def team() -> Team:
    made = after(3)
    made.site.store.put(layout_key(GEOMETRY.id), GEOMETRY.layout.canonical())
    return made


@pytest.mark.parametrize("contents", [True, False])
def test_rounds_that_are_whole_have_no_defects_before_and_after_a_collection(team: Team, contents: bool) -> None:
    store = team.site.store
    audit, wrong = audited(store, contents=contents)
    stored = list(store.list("outer/objects/"))
    assert (wrong, audit.objects) == ([], len(stored))
    assert audit.nbytes == sum(map(store.size, stored))
    for _ in range(2):
        collect(store)
        assert audited(store, contents=contents)[1] == []
    assert audited(store)[0].objects == len([*store.list("outer/objects/")])


@pytest.mark.parametrize("part", ["contribution/000000000002-b", "/checkpoint-head", "/0000000"])
def test_what_a_record_names_is_missed_or_found_damaged(team: Team, part: str) -> None:
    store = team.site.store
    key = [key for key in store.list("outer/objects/") if part in key][-1]
    damage(store, key)
    [found] = audited(store)[1]
    assert (found.key, found.kind) == (key, DefectKind.DAMAGED)
    store.delete(key)
    for contents in (True, False):
        [found] = audited(store, contents=contents)[1]
        assert (found.key, found.kind) == (key, DefectKind.MISSING)


def test_a_record_that_is_missing_or_damaged_is_told(team: Team) -> None:
    store, key = team.site.store, "outer/log/000000000005.json"
    sealed = store.get(key, max_bytes=1 << 20)
    store.put(key, sealed[:-9] + bytes([sealed[-9] ^ 1]) + sealed[-8:])
    [found] = audited(store)[1]
    assert (found.key, found.kind) == (key, DefectKind.DAMAGED)
    store.delete(key)
    [found, *_] = audited(store)[1]
    assert (found.key, found.kind) == (key, DefectKind.MISSING)
    assert "is there" in found.found


def test_a_run_without_outer_rounds_has_none_to_miss() -> None:
    assert audited(Site().store)[1] == []
