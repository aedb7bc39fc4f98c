"""The rules that a record must keep to follow a state: each is broken once, and alone."""

from __future__ import annotations

import pytest

from pulse_registry.errors import CorruptObject
from pulse_registry.log import rules
from pulse_registry.log.fold import advance
from pulse_schemas import RECORD_KINDS, ObjectRef
from tests.support.records import OTHER_LAYOUT, Script, chain, keyframe, patch

HASH = "0" * 64


def moved(ref, key):
    """The same patch under another key."""
    return ref.model_copy(update={"object": ObjectRef(key=key, size=100, blake3=HASH)})


def changed_layout() -> Script:
    return chain(2).commit(layout=OTHER_LAYOUT)


BROKEN = {
    "a record of another run": (
        lambda: chain(1).make_commit(run="other"),
        rules.chain_violation,
        "run 'other'",
    ),
    "a gap in the numbers": (lambda: chain(1).make_commit(seq=3), rules.chain_violation, "record 2 belongs"),
    "a number for the second time": (lambda: chain(1).make_commit(seq=1), rules.chain_violation, "record 1"),
    "another record before it": (lambda: chain(1).make_commit(previous=HASH), rules.chain_violation, HASH),
    "an epoch that has begun": (lambda: chain(1).make_epoch(epoch=1), rules.epoch_violation, "epoch 1"),
    "an epoch that has passed": (
        lambda: chain(1).epoch().make_epoch(epoch=1),
        rules.epoch_violation,
        "epoch 2 has begun before",
    ),
    "a commit of an epoch to come": (lambda: chain(1).make_commit(epoch=2), rules.epoch_violation, "epoch 2"),
    "a commit before any epoch": (lambda: Script().make_commit(), rules.epoch_violation, "never began"),
    "an attach of an epoch to come": (
        lambda: chain(1).make_attach(epoch=2, keyframes=(keyframe(0, tag=1),)),
        rules.epoch_violation,
        "epoch 2",
    ),
    "a version left out": (
        lambda: chain(2).make_commit(version=3, patch=patch(2, 3)),
        rules.version_violation,
        "version 2 is next",
    ),
    "a version for the second time": (
        lambda: chain(2).make_commit(version=1, patch=patch(0, 1, tag=1)),
        rules.version_violation,
        "version 1",
    ),
    "a patch over a change of layout": (
        lambda: chain(2).make_commit(layout=OTHER_LAYOUT, patch=patch(1, 2)),
        rules.layout_change_violation,
        "another layout",
    ),
    "a change of layout without a keyframe": (
        lambda: chain(2).make_commit(layout=OTHER_LAYOUT, patch=patch(1, 2), keyframe=None),
        rules.layout_change_violation,
        "needs a keyframe",
    ),
    "a patch into a version that does not exist": (
        lambda: chain(2).make_attach(patches=(patch(0, 2),)),
        rules.attach_violation,
        "version 2 does not exist",
    ),
    "a patch into a version that was retired": (
        lambda: chain(4).retire(versions=(2,)).make_attach(patches=(patch(0, 2),)),
        rules.attach_violation,
        "version 2 was retired",
    ),
    "a patch from a version that was retired": (
        lambda: chain(4).retire(versions=(0,)).make_attach(patches=(patch(0, 2),)),
        rules.attach_violation,
        "version 0 was retired",
    ),
    "a patch from a version that is forgotten": (
        lambda: chain(4).retire(versions=(0,)).delete().make_attach(patches=(patch(0, 2),)),
        rules.attach_violation,
        "version 0 was retired",
    ),
    "a keyframe of a version that was retired": (
        lambda: chain(4).retire(versions=(1,)).make_attach(keyframes=(keyframe(1),)),
        rules.attach_violation,
        "version 1 was retired",
    ),
    "a keyframe of a version that does not exist": (
        lambda: chain(2).make_attach(keyframes=(keyframe(2),)),
        rules.attach_violation,
        "version 2 does not exist",
    ),
    "a merged patch between two layouts": (
        lambda: changed_layout().make_attach(patches=(patch(0, 2),)),
        rules.attach_violation,
        "between two layouts",
    ),
    "the end of a version that does not exist": (
        lambda: chain(2).make_retire(versions=(2,)),
        rules.retire_violation,
        "version 2, which does not exist",
    ),
    "the end of the newest version": (
        lambda: chain(2).make_retire(versions=(1,)),
        rules.retire_violation,
        "version 1, which is the newest",
    ),
    "the end of a version with a tag": (
        lambda: chain(3).tag("best", 1).make_retire(versions=(0, 1)),
        rules.retire_violation,
        "version 1, which has a tag",
    ),
    "the end of what is no object": (
        lambda: chain(2).make_retire(keys=("log/000000000000.json",)),
        rules.retire_violation,
        "outside the folder",
    ),
    "the deletion of what records to come retire": (
        lambda: chain(2).make_delete(until=3),
        rules.delete_violation,
        "record 2 is the newest",
    ),
    "a tag of a version that does not exist": (
        lambda: chain(2).make_tag(name="best", version=2),
        rules.tag_violation,
        "version 2 does not exist",
    ),
    "a tag of a version that was retired": (
        lambda: chain(3).retire(versions=(1,)).make_tag(name="best", version=1),
        rules.tag_violation,
        "version 1 was retired",
    ),
    "an object that is named already": (
        lambda: chain(2).make_attach(patches=(patch(0, 1),)),
        rules.objects_violation,
        "named already",
    ),
    "an object that was retired": (
        lambda: chain(2).retire(keys=(patch(0, 1).object.key,)).make_attach(patches=(patch(0, 1),)),
        rules.objects_violation,
        "named already",
    ),
    "an object that was retired before any record named it": (
        lambda: chain(3).retire(keys=(patch(0, 2).object.key,)).make_attach(patches=(patch(0, 2),)),
        rules.objects_violation,
        "named already",
    ),
    "a version whose patch was retired before it": (
        lambda: chain(2).retire(keys=(patch(1, 2).object.key,)).make_commit(),
        rules.objects_violation,
        "named already",
    ),
    "an object that was retired and deleted, of versions that are there": (
        lambda: chain(3).retire(keys=(patch(0, 2).object.key,)).delete().make_attach(patches=(patch(0, 2),)),
        rules.objects_violation,
        "named already",
    ),
    "one object twice": (
        lambda: chain(3).make_attach(patches=(patch(0, 2), patch(0, 2))),
        rules.objects_violation,
        "named already",
    ),
    "one object for two patches": (
        lambda: chain(3).make_attach(patches=(patch(0, 2), moved(patch(1, 2), patch(0, 2).object.key))),
        rules.objects_violation,
        "no key of an object of version 2",
    ),
    "a keyframe under the key of another version": (
        lambda: chain(3).make_attach(keyframes=(keyframe(1).model_copy(update={"version": 2}),)),
        rules.objects_violation,
        "no key of an object of version 2",
    ),
    "a patch under a key that no writer makes": (
        lambda: chain(3).make_attach(patches=(moved(patch(0, 2), "objects/p"),)),
        rules.objects_violation,
        "no key of an object of version 2",
    ),
    "an object outside the folder of objects": (
        lambda: chain(3).make_attach(patches=(moved(patch(0, 2), "log/000000000001.json"),)),
        rules.objects_violation,
        "outside the folder",
    ),
    "an object that climbs out of the folder": (
        lambda: chain(3).make_attach(patches=(moved(patch(0, 2), "objects/../head"),)),
        rules.objects_violation,
        "outside the folder",
    ),
    "a commit of a keyframe under a foreign key": (
        lambda: chain(1).make_commit(patch=moved(patch(0, 1), "head")),
        rules.objects_violation,
        "outside the folder",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_record_is_refused_for(name, monkeypatch):
    states = []
    shared = Script.shared

    def remember(self, **changes):
        states.append(self.state)
        return shared(self, **changes)

    monkeypatch.setattr(Script, "shared", remember)
    make, rule, message = BROKEN[name]
    record = make()
    state = states[-1]
    found = rules.violation(state, record)
    assert found is not None
    assert message in found
    assert rule(state, record) == found
    with pytest.raises(CorruptObject) as caught:
        advance(state, record, HASH)
    assert f"record {record.seq} " in str(caught.value)


def test_a_valid_record_of_every_kind_breaks_no_rule():
    script = chain(3)
    key = patch(0, 1).object.key
    valid = (
        script.make_epoch(),
        script.make_epoch(epoch=9),
        script.make_commit(),
        script.make_commit(layout=OTHER_LAYOUT),
        script.make_commit(keyframe=keyframe(3)),
        script.make_attach(patches=(patch(0, 2),), keyframes=(keyframe(1),)),
        script.make_retire(versions=(0, 1), keys=(key, key)),
        script.make_retire(keys=(patch(7, 9).object.key, keyframe(1).index.key)),
        script.make_delete(),
        script.make_delete(until=0),
        script.make_tag(name="best", version=2),
        script.make_tag(name="best", version=None),
        script.make_move(),
        script.make_move(epoch=9),
    )
    assert {record.kind for record in valid} == RECORD_KINDS.keys()
    for record in valid:
        assert rules.violation(script.state, record) is None
