"""Change of the layout from one version to the next: which tensors differ, in words for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from pulse_registry.errors import LayoutMismatch, PulseError
from pulse_registry.events import Event, EventKind, Events
from pulse_schemas import Layout, Tensor


def check_layout(
    run: str, new: Layout, version: int, old: Callable[[], Layout], events: Events, *, allowed: bool
) -> None:
    """Tell of a push whose layout is not that of the version before it, or refuse it.

    Args:
        run: its name, for messages.
        new: the layout of the push.
        version: the one before.
        old: returns its layout.
        events: are told.
        allowed: whether it is not to be refused.

    Raises:
        LayoutMismatch: it is to be refused.
    """
    difference: str | None = None
    with suppress(PulseError):  # whatever became of the old layout, the new one can be stored
        difference = first_difference(old(), new)
    what = difference or "the layout of the version before can't be read"
    if not allowed:
        raise LayoutMismatch(
            f"run {run!r}: the model has another layout than version {version}: {what}. "
            "Nothing was written; allow_new_layout=True would make it a keyframe"
        )
    message = f"the model has another layout than version {version}, and is stored whole: {what}"
    events.tell(Event(EventKind.LAYOUT_CHANGED, run, message))


def first_difference(old: Layout, new: Layout) -> str | None:
    """Name the first tensor, by name, in which a new layout differs from an old one; None: they are the same."""
    before, after = _described(old), _described(new)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        if name not in after:
            return f"tensor {name!r} is gone"
        if name not in before:
            return f"tensor {name!r} is new"
        return f"tensor {name!r} is {after[name]}, and was {before[name]}"
    return None


def _described(layout: Layout) -> Mapping[str, str]:
    def shape(tensor: Tensor) -> str:
        return f"{tensor.dtype} {list(tensor.shape)}"

    stored = {tensor.name: shape(tensor) for tensor in layout.tensors}
    return stored | {name: f"tied to {first!r}" for name, first in layout.tied.items()}
