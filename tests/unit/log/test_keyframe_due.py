"""The rule on keyframes: by the bytes and the versions since the last one; pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.compaction.ladder import CompactOptions, due
from pulse_registry.log import RunState
from pulse_registry.log.fold import advance
from pulse_registry.log.keyframe_due import keyframe_due, keyframe_soon
from tests.support.counting import calls
from tests.support.records import Script, chain, keyframe, patch


def run_of(*sizes: int, attached: tuple[int, ...] = ()) -> RunState:
    """Return a run: version 0 is a keyframe, each later one a patch of that size; some have a keyframe as well."""
    script = Script().epoch().commit()
    for version, size in enumerate(sizes, 1):
        script.commit(patch=patch(version - 1, version, size=size))
    for version in attached:
        script.attach(keyframes=(keyframe(version),))
    return script.state


@pytest.mark.parametrize(
    ("sizes", "attached", "options", "due"),
    [
        # A keyframe has 1,000 bytes: a share of 0.5 allows 500 bytes of patches.
        ((), (), {}, False),
        ((100,), (), {}, False),
        ((500,), (), {}, False),
        ((501,), (), {}, True),
        ((250, 250), (), {}, False),
        ((250, 251), (), {}, True),
        ((100,) * 5, (), {}, False),
        ((100,) * 6, (), {}, True),
        # Bytes count from the newest keyframe on.
        ((400, 400), (1,), {}, False),
        ((400, 400), (2,), {}, False),
        ((400, 101, 400), (1,), {}, True),
        ((10_000,), (1,), {}, False),
        # Another share.
        ((100,), (), {"share": 0.1}, False),
        ((101,), (), {"share": 0.1}, True),
        ((100,) * 50, (), {"share": 100.0}, False),
        # A number of versions.
        ((1,), (), {"every": 1}, True),
        ((1,), (), {"every": 2}, False),
        ((1, 1), (), {"every": 2}, True),
        ((1, 1), (2,), {"every": 1}, False),
        ((1, 1, 1), (1,), {"every": 3}, False),
        ((1, 1, 1, 1), (1,), {"every": 3}, True),
        # Whichever comes first.
        ((600,), (), {"every": 10}, True),
        ((1, 1, 1), (), {"every": 3, "share": 100.0}, True),
    ],
)
def test_a_keyframe_is_due_by_bytes_or_by_versions(
    sizes: tuple[int, ...], attached: tuple[int, ...], options: dict[str, float], due: bool
):
    rule: dict[str, Any] = {"every": None, "share": 0.5, **options}
    assert keyframe_due(run_of(*sizes, attached=attached), 1000, **rule) is due


def test_a_run_without_versions_has_none_due():
    assert not keyframe_due(RunState("math"), 1000, every=1, share=0.5)


def test_a_run_whose_keyframes_were_retired_has_one_due():
    state = chain(3).retire(keys=(keyframe(0).index.key,)).state
    assert state.keyframe(0) is None
    assert keyframe_due(state, 10**9, every=None, share=0.5)


def test_merged_patches_do_not_count():
    script = Script().epoch().commit().commit(patch=patch(0, 1, size=200)).commit(patch=patch(1, 2, size=200))
    script.attach(patches=(patch(0, 2, size=9000),))
    assert not keyframe_due(script.state, 1000, every=None, share=0.5)


def test_by_neither_bytes_nor_versions_none_is_due():
    assert not keyframe_due(run_of(*[900] * 9), 1000, every=None, share=None)


@pytest.mark.parametrize(
    ("sizes", "attached", "options", "soon"),
    [
        ((), (), {}, False),
        ((250,), (), {}, False),  # 250 more are 500, which a share of 0.5 of 1,000 allows
        ((251,), (), {}, True),
        ((100, 200), (), {}, False),
        ((100, 201), (), {}, True),
        ((400, 100), (1,), {}, False),
        ((501,), (1,), {}, True),
        ((1,), (), {"every": 2}, True),
        ((1,), (), {"every": 3}, False),
        ((1, 1), (), {"every": 3}, True),
        ((1, 1), (2,), {"every": 1}, True),
        ((1, 1), (2,), {"every": 2}, False),
    ],
)
def test_a_keyframe_is_due_soon_where_one_more_version_like_the_newest_makes_it_due(
    sizes: tuple[int, ...], attached: tuple[int, ...], options: dict[str, float], soon: bool
):
    rule: dict[str, Any] = {"every": None, "share": 0.5, **options}
    assert keyframe_soon(run_of(*sizes, attached=attached), 1_000, **rule) == soon
    again = sizes[-1:] or (0,)
    if sizes and not attached:
        assert keyframe_due(run_of(*sizes, *again, attached=attached), 1_000, **rule) == soon


def due_by_looking_back(state: RunState, keyframe_bytes: int, every: int | None, share: float | None) -> bool:
    """The rule, said version by version from the newest one back."""
    latest, nbytes = state.latest, 0
    if latest is None or (every is None and share is None):
        return False
    for entry in reversed(state.versions):
        if every is not None and latest.version - entry.version >= every:
            return True
        if share is not None and nbytes > share * keyframe_bytes:
            return True
        if state.keyframe(entry.version) is not None:
            return False
        nbytes += sum(patch.size for patch in state.patches_into(entry.version) if patch.base == entry.version - 1)
    return True


@pytest.mark.slow
@given(st.data())
def test_what_a_state_keeps_is_what_looking_back_finds_after_every_record(data: st.DataObject):
    script = chain(data.draw(st.integers(1, 4)))
    for tag in range(1, data.draw(st.integers(1, 12))):
        state = script.state
        live = [entry.version for entry in state.versions if not state.is_retired(entry.version)]
        keys = [p.object.key for p in state.patches] + [k.index.key for k in state.keyframes]
        match data.draw(st.sampled_from(["commit", "commit", "attach", "keyframe", "versions", "keys", "delete"])):
            case "attach" if len(live) > 1:
                a, b = sorted(data.draw(st.lists(st.sampled_from(live), min_size=2, max_size=2, unique=True)))
                record: Any = script.make_attach(patches=(patch(a, b, size=50 + tag, tag=tag),))
            case "keyframe":
                versions = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=2, unique=True))
                record = script.make_attach(keyframes=tuple(keyframe(v, size=500 + tag, tag=tag) for v in versions))
            case "versions":
                record = script.make_retire(versions=tuple(data.draw(st.sets(st.sampled_from(live))) - {live[-1]}))
            case "keys" if keys:
                record = script.make_retire(keys=tuple(data.draw(st.sets(st.sampled_from(keys), max_size=3))))
            case "delete":
                record = script.make_delete()
            case _:
                record = script.make_commit(patch=patch(len(state.versions) - 1, len(state.versions), size=10 * tag))
        script.state = state.copy()
        advance(script.state, record, "0" * 64)
        for state in (script.state, RunState.from_snapshot(script.state.to_snapshot())):
            assert state.largest_keyframe == max((frame.size for frame in state.keyframes), default=0)
            for every, share in ((1, None), (3, None), (None, 0.05), (None, 0.2), (2, 0.1), (None, -1.0)):
                expected = due_by_looking_back(state, 1000, every, share)
                assert keyframe_due(state, 1000, every=every, share=share) == expected


def looks(versions: int) -> tuple[int, int, int]:
    """Return the calls that the looks after a push need, at so many versions."""
    state, rule = chain(versions).state, dict[str, Any](every=10**6, share=10.0**6)
    options = CompactOptions(keyframe_every=10**6, keyframe_share=10.0**6)
    return (
        calls(lambda: keyframe_due(state, 1000, **rule)),
        calls(lambda: keyframe_soon(state, 1000, **rule)),
        calls(lambda: [*due(state, options, versions - 2)]),
    )


def test_a_push_late_in_a_run_asks_as_little_as_an_early_one():
    early, late = looks(261), looks(1029)  # blocks of 2 and of 4 end at both
    # All lengths of blocks are gone through, and rows are found by bisection: their logarithm.
    assert all(after <= 1.3 * before for before, after in zip(early, late, strict=True))
