"""KeyframeLag: how far a run's newest version is from its newest keyframe."""

from __future__ import annotations

from typing import NamedTuple


class KeyframeLag(NamedTuple):
    """The newest version of which a live keyframe is offered, and the bytes of the patches from there on.

    Of the patches those count that lead from one version to the next.
    """

    version: int
    nbytes: int
