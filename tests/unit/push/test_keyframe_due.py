"""The rule on keyframes: by the bytes and the versions since the last one; pure."""

from __future__ import annotations

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.log import RunState
from pulse_registry.push.keyframe import keyframe_due
from pulse_registry.push.options import PushOptions
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
        # Full size 1,000: the default share of 0.5 allows 500 bytes of patches.
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
        ((100,), (), {"keyframe_share": 0.1}, False),
        ((101,), (), {"keyframe_share": 0.1}, True),
        ((100,) * 50, (), {"keyframe_share": 100.0}, False),
        # A number of versions.
        ((1,), (), {"keyframe_every": 1}, True),
        ((1,), (), {"keyframe_every": 2}, False),
        ((1, 1), (), {"keyframe_every": 2}, True),
        ((1, 1), (2,), {"keyframe_every": 1}, False),
        ((1, 1, 1), (1,), {"keyframe_every": 3}, False),
        ((1, 1, 1, 1), (1,), {"keyframe_every": 3}, True),
        # Whichever comes first.
        ((600,), (), {"keyframe_every": 10}, True),
        ((1, 1, 1), (), {"keyframe_every": 3, "keyframe_share": 100.0}, True),
    ],
)
def test_a_keyframe_is_due_by_bytes_or_by_versions(
    sizes: tuple[int, ...], attached: tuple[int, ...], options: dict[str, float], due: bool
):
    assert keyframe_due(run_of(*sizes, attached=attached), 1000, PushOptions(**options)) is due  # type: ignore[arg-type]


def test_a_run_without_versions_has_none_due():
    assert not keyframe_due(RunState("math"), 1000, PushOptions(keyframe_every=1))


def test_a_run_whose_keyframes_were_retired_has_one_due():
    state = chain(3).retire(keys=(keyframe(0).index.key,)).state
    assert state.keyframe(0) is None
    assert keyframe_due(state, 10**9, PushOptions())


def test_merged_patches_do_not_count():
    script = Script().epoch().commit().commit(patch=patch(0, 1, size=200)).commit(patch=patch(1, 2, size=200))
    script.attach(patches=(patch(0, 2, size=9000),))
    assert not keyframe_due(script.state, 1000, PushOptions())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"coder": "zip"}, "coder"),
        ({"dtype": "fp8"}, "dtype"),
        ({"keyframe_share": 0.0}, "keyframe_share"),
        ({"keyframe_share": -1.0}, "keyframe_share"),
        ({"keyframe_share": float("nan")}, "keyframe_share"),
        ({"keyframe_every": 0}, "keyframe_every"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, object], named: str):
    with pytest.raises(InvalidArgument, match=named):
        PushOptions(**options)  # type: ignore[arg-type]


def test_the_default_options_are_in_range():
    PushOptions()
