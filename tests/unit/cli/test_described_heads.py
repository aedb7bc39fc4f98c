"""`pulse inspect` of a patch in parts: its head says what the whole patch is."""

from __future__ import annotations

import pytest

from pulse_registry.cli.described import Source, describe_object
from pulse_registry.errors import CorruptObject
from pulse_registry.store import PrefixStore
from tests.support.parts import CHANGES, parts_of, wide_run
from tests.support.records import DictStore
from tests.support.registries import RUN, state_of


def test_a_head_is_described_as_its_patch_and_a_damaged_one_is_refused():
    store = DictStore()
    wide_run(store, 2)
    [ref] = state_of(store).patches
    below = PrefixStore(store, RUN)
    found = describe_object(Source.of_key(below, ref.object.key))
    assert (found["type"], found["size"], found["parts"]) == ("patch", ref.head_size, ref.parts)
    assert [group["group"] for group in found["groups"]] == CHANGES[0]
    assert found["bits_per_cell"] == round(8 * ref.size / ref.changed, 3)
    head = parts_of(store, 0, 1)[ref.object.key]
    for damaged in (head[:-1], head[:40], head + b"x", b"x" + head, b"[]      ", b"\x02" + bytes(7) + b"[]"):
        store.objects[f"{RUN}/{ref.object.key}"] = damaged
        with pytest.raises(CorruptObject, match="patch-head"):
            describe_object(Source.of_key(below, ref.object.key))
