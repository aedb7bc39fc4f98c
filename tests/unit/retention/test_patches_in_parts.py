"""A patch in parts is collected as one: retired by the key of its head, deleted with all of its parts."""

from __future__ import annotations

import pytest

from pulse_registry.errors import Conflict, PulseError
from pulse_registry.format import keys
from pulse_registry.log import CommitDraft
from pulse_schemas import PatchRef
from tests.support.records import patch, write_id
from tests.unit.retention.world import DAY, HOUR, World


def in_parts(base: int, target: int, number: int) -> PatchRef:
    """A patch of a head of 100 bytes and parts of 300."""
    ref = patch(base, target, size=100, tag=number)
    head = ref.object.model_copy(update={"key": keys.patch_head_key(base, target, write_id(10**6 + number))})
    return PatchRef(**{**dict(ref), "object": head, "head_size": 100, "head_blake3": head.blake3, "parts": 300})


def put(world: World, ref: PatchRef, parts: tuple[int, ...] = (0, 2, 3), *, head: bool = True) -> set[str]:
    """Store its objects; return their keys."""
    found = {keys.part_key(ref.object.key, part) for part in parts} | ({ref.object.key} if head else set())
    for key in found:
        world.store.put(key, bytes(100))
    return found


def commit(world: World, ref: PatchRef | None = None, *, whole: bool = False) -> None:
    draft = world.draft(len(world.state.versions), whole=whole)
    world.put(*([draft.keyframe] if draft.keyframe else []), *([draft.patch] if draft.patch and ref is None else []))
    if ref is not None:
        draft = CommitDraft(
            **{name: getattr(draft, name) for name in draft.__slots__ if name != "patch"}, patch=ref
        )  # fmt: skip
    world.trainer.commit(draft)


@pytest.fixture
def world() -> tuple[World, dict[int, set[str]]]:
    """Six versions, the last five by patches in parts, of which the fourth has a keyframe; and these patches' keys."""
    made = World()
    commit(made)
    objects = {}
    for version in range(1, 6):
        ref = in_parts(version - 1, version, version)
        objects[version] = put(made, ref)
        commit(made, ref, whole=version == 4)
    return made, objects


def test_parts_live_and_die_with_their_head(world: tuple[World, dict[int, set[str]]]):
    made, objects = world
    live = made.state
    assert all(live.is_live(key) for found in objects.values() for key in found)
    made.wait(2 * HOUR)
    first = made.collect()
    assert first.plan.versions == (0, 1, 2, 3)
    heads = {keys.named_key(key) for version in (1, 2, 3, 4) for key in objects[version]}
    assert len(heads) == 4
    assert heads <= set(first.plan.keys)
    assert first.plan.objects == 4 + 2, "a patch counts as one, a keyframe by its files"
    assert not first.plan.orphans
    assert all(objects[version] <= made.objects() for version in objects), "nothing is deleted before the grace time"
    made.wait(2 * HOUR)
    second = made.collect()
    assert second.deleted >= 16
    for version, found in objects.items():
        assert found <= made.objects() if version == 5 else not found & made.objects()


def test_orphaned_parts_are_retired_by_the_key_that_could_name_them(world: tuple[World, dict[int, set[str]]]):
    """The head may be missing: its writer died before it was stored, or may wake."""
    made, _ = world
    ref, other = in_parts(5, 6, 77), in_parts(5, 6, 78)
    lone = put(made, ref, head=False)
    whole = put(made, other)
    made.wait(2 * DAY)
    young = in_parts(5, 6, 79)
    kept = put(made, young, head=False)
    found = made.collect(dry_run=True)
    assert sorted(found.plan.orphans) == sorted([ref.object.key, other.object.key])
    assert found.orphan_bytes == 700
    made.collect()
    assert (lone | whole | kept) <= made.objects()
    # The writer wakes: what it stored can be named no more.
    put(made, ref, parts=())
    with pytest.raises(PulseError, match="retired") as caught:
        commit(made, ref)
    assert isinstance(caught.value, Conflict)
    commit(made, young)
    made.wait(2 * HOUR)
    made.collect()
    assert not (lone | whole | {ref.object.key}) & made.objects()
    assert kept <= made.objects()


def test_a_long_list_of_parts_is_one_orphan_across_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pulse_registry.retention.survey.BATCH", 3)
    made = World()
    commit(made)
    ref = in_parts(0, 1, 5)
    put(made, ref, parts=tuple(range(20)))
    made.wait(2 * DAY)
    assert made.collect(dry_run=True).plan.orphans == (ref.object.key,)
