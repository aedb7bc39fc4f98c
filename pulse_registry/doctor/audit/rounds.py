"""The audit of a run's outer rounds: every record is there and follows the one before, and so is what they name.

What was retired is left out of account: it may be there or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pulse_registry.doctor.audit.defect import RESTORE, Defect, DefectKind
from pulse_registry.errors import CorruptObject, NotFound, PulseError, UnsupportedFormat, Untrusted
from pulse_registry.format import keys
from pulse_registry.log import Guard
from pulse_registry.log.gap import beyond
from pulse_registry.log.layouts import fetch_layout
from pulse_registry.outer.checkpoints import fetch_groups
from pulse_registry.outer.log import FOLDER, OuterLog
from pulse_registry.outer.state import OuterState
from pulse_registry.store import PrefixStore
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import ObjectRef

if TYPE_CHECKING:
    from pulse_registry.store import Store

_BAD: Final = (CorruptObject, Untrusted, UnsupportedFormat)


class RoundsAudit:
    """Audits the outer rounds of one run; for one thread at a time."""

    def __init__(self, store: Store, run: str, guard: Callable[[], Guard | None] = lambda: None) -> None:
        """Prepare; no I/O yet. The arguments are those of `LogAudit`."""
        self._store = store
        self._log = OuterLog(store, run, None, guard(), ThreadPoolExecutor, whole=True)

    def defects(self) -> Iterator[Defect]:
        """Read the log, and yield what is wrong with it; nothing of a run without outer rounds.

        Raises:
            AccessDenied, StoreUnavailable: the store can't be read.
        """
        try:
            self._log.refresh()
        except _BAD as error:
            yield Defect.of(keys.OUTER + keys.record_key(self._log.state.seq + 1), error)
            return
        later = beyond(PrefixStore(self._store, FOLDER), self._log.state.seq).record
        if later is not None and later > self._log.refresh().seq:
            first = self._log.state.seq + 1
            yield Defect(
                keys.OUTER + keys.record_key(first),
                DefectKind.MISSING,
                f"outer record {first} is missing, and record {later} is there: members take the log to end here",
                f"before anybody appends, {RESTORE}",
            )

    def needed(self) -> dict[str, ObjectRef]:
        """Return the objects that the log names and has not retired, by key, without the groups of checkpoints."""
        return {keys.OUTER + ref.key: _below(ref) for ref in _named(self._log.state)}

    def groups(self) -> Iterator[ObjectRef | Defect]:
        """Yield the groups of checkpoints, which their heads name; or what is wrong with a head.

        Raises:
            AccessDenied, StoreUnavailable: the store can't be read.
        """
        state = self._log.state
        if state.start is None or not state.checkpoints:
            return
        try:
            geometry = Geometry(fetch_layout(self._store, state.start.layout))
        except (NotFound, CorruptObject, UnsupportedFormat) as error:
            yield Defect.of(keys.layout_key(state.start.layout), error)
            return
        for record in state.checkpoints:
            key = keys.OUTER + record.object.key
            try:
                head = fetch_groups(PrefixStore(self._store, FOLDER), record, geometry)
            except (NotFound, CorruptObject, UnsupportedFormat) as error:
                yield Defect.of(key, error)
                continue
            for entry in head.entries.values():
                yield ObjectRef(
                    key=keys.checkpoint_group_key(key, entry.group), size=entry.size, blake3=entry.blake3.hex()
                )

    def is_needed(self, key: str) -> bool:
        """Tell whether an object is needed still, of rounds that others go on with meanwhile."""
        with suppress(PulseError):
            self._log.refresh()
        found = keys.outer_object(key.removeprefix(keys.OUTER))
        state = self._log.state
        return found is not None and (found[1] > state.retired or (found[0], found[1]) == ("checkpoint", state.retired))


def _named(state: OuterState) -> Iterator[ObjectRef]:
    for closed in state.closed:
        yield from (part.object for part in closed.contributions.values() if part.object is not None)
    yield from (part.object for part in state.contributions.values() if part.object is not None)
    yield from (record.object for record in state.merged.values())
    yield from (record.object for record in state.checkpoints)


def _below(ref: ObjectRef) -> ObjectRef:
    return ref.model_copy(update={"key": keys.OUTER + ref.key})
