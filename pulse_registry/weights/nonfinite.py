"""Policy for NaN and infinite weights, in pushes and in pulls.

Only cells that change are looked at, and all of them where all are new: the cost of a look is that of what it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from pulse_kernels.nonfinite import NONFINITE_FROM, first_nonfinite
from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.weights.cell_space import Geometry, Group

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulse_kernels import Cells
    from pulse_registry.process.parallel import Map

NonFinite = Literal["allow", "warn", "refuse"]
"""``allow`` does not look; ``warn`` tells of it as an event; ``refuse`` raises InvalidModel, and nothing is changed."""
_POLICIES: Final = get_args(NonFinite)


def check_policy(policy: str) -> None:
    """Raise InvalidArgument where a policy is none of the three."""
    if policy not in _POLICIES:
        raise InvalidArgument(f"nonfinite is {policy!r}; it is one of {', '.join(_POLICIES)}")


def first_in_groups(geometry: Geometry, cells_of: Callable[[Group], Cells], map_: Map) -> int | None:
    """Return the flat index of a cell that is NaN or infinite, by a look at all of them; None if there is none."""

    def look(group: Group) -> int | None:
        place = first_nonfinite(cells_of(group), group.cell_type)
        return None if place is None else group.start + place

    wanted = [group for group in geometry.groups if group.cell_type.name in NONFINITE_FROM]
    return min((found for found in map_(look, wanted) if found is not None), default=None)


def judge(policy: NonFinite, geometry: Geometry, flat: int | None, what: str, run: str, events: Events) -> None:
    """Do what the policy says about a cell that is NaN or infinite.

    Args:
        policy: not ``allow``.
        geometry: of the cells.
        flat: the cell's flat index; None: there is none.
        what: names the version, for the message.
        run: the run's name.
        events: hear of it, if the policy is to warn.

    Raises:
        InvalidModel: the policy is to refuse.
    """
    if flat is None:
        return
    tensor, index = _place(geometry, flat)
    message = f"{what} is not finite: tensor {tensor!r} has NaN or an infinity at flat index {index}"
    if policy == "refuse":
        raise InvalidModel(f"run {run!r}: {message}. Nothing was changed")
    events.tell(Event(EventKind.NOT_FINITE, run, message))


def _place(geometry: Geometry, flat: int) -> tuple[str, int]:
    """Return the tensor that a flat index lies in, and the index there."""
    for tensor, size in zip(geometry.layout.tensors, geometry.sizes, strict=True):
        if flat < size:
            return tensor.name, flat
        flat -= size
    raise LookupError(f"the layout has no cell {flat} beyond its last")
