"""Base check of a pull: whether the weights are the version that they are taken for, in all cells or those that change.

The cells that change are always checked, at no cost. All of them take a pass over the weights.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Literal

from pulse_registry.errors import BaseMismatch, InvalidArgument
from pulse_registry.weights.digest import Digest

if TYPE_CHECKING:
    from pulse_registry.pull.destination import Destination
    from pulse_schemas import VersionEntry

BaseCheck = Literal["touched", "all"] | int
"""``touched``: the cells that a pull changes; ``all``: all cells, at every pull; n: all cells, at every n-th pull."""


def pulls_a_check(check: BaseCheck) -> int:
    """Return at which pulls all cells are checked: every n-th; 0: at none.

    Raises:
        InvalidArgument: it is none of these.
    """
    if isinstance(check, str) and check in ("touched", "all"):
        return int(check == "all")
    try:
        every = 0 if isinstance(check, bool | str) else operator.index(check)
    except TypeError:
        every = 0
    if every < 1:
        raise InvalidArgument(f"check is {check!r}; it is 'touched', 'all', or n, from 1 on, for every n-th pull")
    return every


def check_all(target: Destination, base: VersionEntry) -> None:
    """Compare all cells with the version that they are taken for, by their state digest; they are only read.

    Raises:
        BaseMismatch: they are another state.
    """
    found = target.digest()
    if found != Digest.parse(base.digest):
        raise BaseMismatch(
            f"the weights are not version {base.version}: their state digest is {found.hex()}, {base.digest} was "
            "committed, so something else has changed them since they were pulled. Nothing was changed; pull into them "
            "with replace=True to replace them whole"
        )
