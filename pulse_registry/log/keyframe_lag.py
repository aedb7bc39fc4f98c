"""KeyframeLag: how far a run's newest version is from its newest keyframe."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from pulse_registry.log.table import Table
from pulse_schemas import KeyframeRef, PatchRef


class KeyframeLag(NamedTuple):
    """The newest version of which a live keyframe is offered, and the bytes of the patches from there on.

    Of the patches those count that lead from one version to the next.

    >>> KeyframeLag(4, 100).with_patch(5, 6, 20)
    KeyframeLag(version=4, nbytes=120)
    """

    version: int
    nbytes: int

    @classmethod
    def of(
        cls, patches: Table[PatchRef], keyframes: Table[KeyframeRef], newest: int, is_retired: Callable[[int], bool]
    ) -> Self | None:
        """Look for the newest keyframe, and add up the patches from there to version ``newest``; None without one."""
        versions = np.unique(keyframes.column("version")[keyframes.alive])[::-1].tolist()
        last = next((version for version in versions if not is_retired(version)), None)
        return None if last is None else cls(last, direct_bytes(patches, last + 1, newest))

    def with_patch(self, base: int, target: int, nbytes: int) -> KeyframeLag:
        """Return the lag with so many bytes more, if the patch that has them counts."""
        counts = base == target - 1 and target > self.version
        return KeyframeLag(self.version, self.nbytes + nbytes) if counts else self


def direct_bytes(patches: Table[PatchRef], first: int, last: int) -> int:
    """Return the bytes of the live patches from one version to the next that lead to those from first to last."""
    base, target, nbytes = (patches.column(name).data for name in ("base", "target", "nbytes"))
    return sum(int(nbytes[row]) for row in patches.between("target", first, last) if base[row] == target[row] - 1)
