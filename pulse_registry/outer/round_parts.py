"""What a round's outer step is made of: its contributions or their totals, what takes fewer bytes and can be read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from pulse_registry.errors import BaseMismatch, CorruptObject, NotFound, PulseError, UnsupportedFormat
from pulse_registry.outer.checkpoint_turn import round_bytes
from pulse_registry.outer.contributions import Contributions, HoldsVersion
from pulse_registry.outer.mean import GroupTotals, Part
from pulse_registry.outer.state import ClosedRound, OuterState
from pulse_schemas.outer import StartRecord

_logger = logging.getLogger(__name__)
_BAD = (NotFound, CorruptObject, BaseMismatch, UnsupportedFormat)
Parts = Mapping[int, Sequence[Part]] | Mapping[int, GroupTotals]
"""By number of the group."""


def contributed(
    contributions: Contributions, weights: HoldsVersion, closed: ClosedRound, start: StartRecord
) -> tuple[dict[int, list[Part]], int]:
    """Return what the contributions to a round have of each group, and the least of their exponents.

    They are taken in the order of the members' names, which float32 values are summed in.

    Raises:
        CorruptObject, BaseMismatch, NotFound, StoreUnavailable: as ``Contributions.get``.
    """
    parts, exponents = dict[int, list[Part]](), list[int]()
    for _, record in sorted(closed.contributions.items()):
        weight = record.steps if start.weighting == "steps" else 1
        for group, part in contributions.get(weights, record, start.values, weight):
            parts.setdefault(group.number, []).append(part)
            exponents.append(record.exponent)
    return parts, min(exponents, default=0)


def round_parts(
    contributions: Contributions, weights: HoldsVersion, state: OuterState, closed: ClosedRound, start: StartRecord
) -> tuple[Parts, int]:
    """Return what a round's outer step is made of, and the exponent of its totals.

    Raises:
        CorruptObject, BaseMismatch, NotFound, StoreUnavailable: as ``Contributions.get``.
    """
    record = state.merged.get(closed.number)

    def one_by_one() -> tuple[Parts, int]:
        return contributed(contributions, weights, closed, start)

    if record is None:
        return one_by_one()

    def together() -> tuple[Parts, int]:
        return contributions.get_merged(weights, record), record.exponent

    ways: list[Callable[[], tuple[Parts, int]]] = [one_by_one, together]
    if record.object.size < round_bytes(closed):
        ways.reverse()
    failed: dict[Callable[[], tuple[Parts, int]], PulseError] = {}
    for way in ways:
        try:
            return way()
        except _BAD as error:
            _logger.warning("run %s: round %d is read another way: %s", state.run, closed.number, error)
            failed[way] = error
    raise failed[one_by_one]
