"""Small files of a run are named by their content: no collector takes them away, whichever versions go."""

from __future__ import annotations

from pulse_registry.format import keys
from tests.unit.retention.world import DAY, World

FIRST, SECOND, NOBODY = "a" * 64, "b" * 64, "c" * 64


def test_files_stay_and_versions_that_stay_have_theirs() -> None:
    world = World()
    for version in range(8):
        draft = world.draft(version, whole=version % 4 == 0)
        draft = type(draft)(**{f: getattr(draft, f) for f in draft.__slots__ if f != "files"}, files=files_of(version))
        world.put(*(ref for ref in (draft.patch, draft.keyframe) if ref is not None))
        world.trainer.commit(draft)
    for name in (FIRST, SECOND, NOBODY):
        world.store.put(keys.file_key(name), b"x")
    # Even a record that retires one takes nothing away: it can't be told what a push on its way is about to name.
    world.writer().retire(keys=[keys.file_key(NOBODY)])
    for _ in range(3):
        world.wait(30 * DAY)
        world.collect()
    state = world.state
    assert world.versions() == [4, 5, 6, 7], "the version that named the first files is gone"
    assert {entry.files for entry in state.versions_since(4)} == {SECOND}
    assert {key for key in world.objects() if key.startswith(keys.FILES)} == {
        keys.file_key(name) for name in (FIRST, SECOND, NOBODY)
    }


def files_of(version: int) -> str | None:
    return {1: FIRST, 4: SECOND}.get(version)
