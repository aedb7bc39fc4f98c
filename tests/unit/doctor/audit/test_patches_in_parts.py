"""An audit looks at the parts of patches, which their heads name."""

from __future__ import annotations

import pytest

from pulse_registry.doctor.audit import DefectKind, RunAudit
from pulse_registry.format import keys
from pulse_registry.store import PrefixStore
from tests.support.parts import parts_of, wide_run
from tests.support.records import DictStore
from tests.support.registries import RUN, copied, state_of

CONTENTS = pytest.mark.parametrize("contents", [False, True], ids=["listed", "read"])


@pytest.fixture(scope="module")
def pushed() -> DictStore:
    store = DictStore()
    wide_run(store, 4)
    return store


def audited(store: DictStore, *, contents: bool) -> tuple[RunAudit, list[tuple[str, DefectKind]]]:
    audit = RunAudit(PrefixStore(store, RUN), RUN)
    return audit, [(found.key, found.kind) for found in audit.defects(contents=contents)]


def head(store: DictStore) -> str:
    [found] = [patch.object.key for patch in state_of(store).patches if patch.target == 1]
    return found


@CONTENTS
def test_a_whole_run_counts_its_parts(pushed: DictStore, contents: bool):
    audit, found = audited(pushed, contents=contents)
    objects = {key: data for key, data in pushed.objects.items() if "/objects/" in key}
    assert found == []
    assert (audit.objects, audit.nbytes) == (len(objects), sum(map(len, objects.values())))
    assert len(parts_of(pushed, 0, 1)) == 4


@CONTENTS
@pytest.mark.parametrize("name", ["patch-head", "00000", "00002"])
def test_what_is_missing_is_found(pushed: DictStore, name: str, contents: bool):
    store = copied(pushed)
    key = f"{head(store).rpartition('/')[0]}/{name}"
    del store.objects[f"{RUN}/{key}"]
    assert audited(store, contents=contents)[1] == [(key, DefectKind.MISSING)]


@pytest.mark.parametrize("name", ["patch-head", "00000", "00001", "00002"])
@pytest.mark.parametrize("how", ["flipped", "short", "long"])
def test_what_is_damaged_is_found_where_it_is_read(pushed: DictStore, name: str, how: str):
    store = copied(pushed)
    key = f"{head(store).rpartition('/')[0]}/{name}"
    data = store.objects[f"{RUN}/{key}"]
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    store.objects[f"{RUN}/{key}"] = {"flipped": flipped, "short": data[:-1], "long": data + b"x"}[how]
    assert audited(store, contents=True)[1] == [(key, DefectKind.DAMAGED)]
    listed = audited(store, contents=False)[1]
    assert listed == ([(key, DefectKind.DAMAGED)] if name == "patch-head" and how != "long" else [])


def test_the_remedy_of_a_part_names_the_head(pushed: DictStore):
    store = copied(pushed)
    key = keys.part_key(head(store), 1)
    del store.objects[f"{RUN}/{key}"]
    [found] = RunAudit(PrefixStore(store, RUN), RUN).defects(contents=True)
    assert head(store) in found.remedy
