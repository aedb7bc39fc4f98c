"""Options of a pull: each checks its range."""

from __future__ import annotations

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.options import PullOptions


@pytest.mark.parametrize("share", [-0.1, float("inf"), float("nan")])
def test_a_share_of_the_weights_to_go_back_with_is_a_number_from_0_on(share: float) -> None:
    with pytest.raises(InvalidArgument, match="undo_share"):
        PullOptions(undo_share=share)


def test_more_than_the_weights_may_be_kept_to_go_back_with() -> None:
    assert PullOptions(undo_share=4.0).undo_share == 4.0
