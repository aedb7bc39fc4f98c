"""Options of a push: each checks its range."""

from __future__ import annotations

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.push.options import PushOptions


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
