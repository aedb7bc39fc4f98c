"""The rule on keyframes: by the bytes and the versions since the last one; pure."""

from __future__ import annotations

from typing import Any

import pytest

from pulse_registry.log import RunState
from pulse_registry.log.keyframe_due import keyframe_due, keyframe_soon
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
