"""Pulling: route -> fetch -> decode -> verify -> apply, for one worker's weights."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from pulse_registry.context import Context
from pulse_registry.errors import BaseMismatch, InvalidArgument, PulseError
from pulse_registry.log import RunState
from pulse_registry.pull.base_check import check_all
from pulse_registry.pull.destination import Destination
from pulse_registry.pull.failover import Found, stage_version
from pulse_registry.pull.replica import ReplicaState, UndoStep
from pulse_registry.pull.stage import StagedCells
from pulse_registry.results import PullResult
from pulse_registry.timeline import Timeline, extents
from pulse_registry.weights.nonfinite import NonFinite, judge
from pulse_schemas import VersionEntry

__all__ = ["Staged", "stage_into"]


def stage_into(
    context: Context,
    state: RunState,
    entry: VersionEntry,
    target: Destination,
    held: ReplicaState | None,
    *,
    replace: bool,
    undo_limit: int,
    timeline: Timeline,
    applied: Callable[[PullResult], None] | None = None,
    nonfinite: NonFinite = "allow",
    check_every: int = 0,
) -> Staged:
    """Stage a version into a target; ``held`` is what its weights are known to hold (None: they are new).

    The weights may be changed meanwhile, by another staged version: nobody waits for a staging to end. This one then
    raises BaseMismatch.

    ``timeline`` began with the call. ``applied`` is told of the result once the weights have changed; it neither waits
    nor fails. ``nonfinite`` says what becomes of a version with NaN or infinities among the cells that would change.
    ``check_every`` n: at every n-th pull, all cells are compared with the version that they are taken for; 0: at none.
    There is nothing to compare where nothing is known of them, or a keyframe leads to the version.
    """
    new = held is None
    held = held if held is not None else ReplicaState()
    with held.lock:
        mend(target, held)
        holds, writes = held.version, held.writes
        base = state.find(holds) if holds is not None and not replace else None
        if base is not None and base.layout != entry.layout:
            base = None
        undo = list(reversed(held.undo)) if base is not None else []
        full = check_every > 0 and (held.pulls + 1) % check_every == 0
    found: Found | None = None
    try:
        found = stage_version(context, state, entry, target, base=base, timeline=timeline, undo=undo, new=new)
        if nonfinite != "allow":
            flat = found.cells.not_finite(context, target)
            judge(nonfinite, target.geometry, flat, f"version {entry.version}", state.run, context.events)
        if full and base is not None and found.route.base is not None:
            with timeline.during("verify"):  # last, so that little time is left for others to change the weights in
                check_all(target, base)
        _check_unchanged(held, writes, entry.version)
        return Staged(context, target, held, entry, found, undo_limit, timeline, applied, base=holds)
    except BaseException as error:
        if found is not None:
            found.cells.close()
        if isinstance(error, PulseError):
            _check_unchanged(held, writes, entry.version)  # what was found amiss may be nothing else
        raise


def _check_unchanged(held: ReplicaState, writes: int, version: int) -> None:
    with held.lock:
        if held.writes != writes:
            raise BaseMismatch(
                f"the weights were changed while version {version} was staged for them, and hold {_name(held.version)} "
                "now. Stage it again"
            )


def mend(target: Destination, held: ReplicaState) -> None:
    """Undo an application that was cut off: the weights are again the version that is remembered."""
    if held.torn is not None:
        held.writes += 1
        target.undo(held.torn)
        held.torn = None


class Staged:
    """A version that is ready to be applied: fetched, checked, decoded. A context manager that discards at its end.

    Attributes:
        version: the version's number.
        step: the trainer's label of it.
        route: the objects that lead there.
        avoided: keys of the objects that are gone or damaged, so that another route was taken.
        nbytes: bytes of the route.
        changed: cells that ``apply`` will write.
    """

    def __init__(
        self,
        context: Context,
        target: Destination,
        held: ReplicaState,
        entry: VersionEntry,
        found: Found,
        undo_limit: int,
        timeline: Timeline,
        applied: Callable[[PullResult], None] | None = None,
        *,
        base: int | None,
    ) -> None:
        self.version = entry.version
        self.step = entry.step
        self.route = found.route
        self.avoided = found.avoided
        self.nbytes = found.route.nbytes
        cells = found.cells
        self.changed = target.geometry.cells if cells.whole else cells.changes.changed
        self._target = target
        self._timeline = timeline
        self._context = context
        self._held = held
        self._entry = entry
        self._cells: StagedCells | None = cells
        self._base = base
        self._undo_limit = undo_limit
        self._tell = applied
        self._applied = False

    @property
    def fits(self) -> bool:
        """Whether the weights hold what it was staged for, so that ``apply`` would change them."""
        return self._cells is not None and not self._applied and self._held.version == self._base

    def apply(self) -> PullResult:
        """Change the weights to the staged version, in place; addresses do not move. Idempotent.

        Raises:
            BaseMismatch: another version was applied to the weights since this one was staged; nothing was changed.
            InvalidArgument: it was discarded.
        """
        timeline = self._timeline.copy()
        began = timeline.clock()
        with self._held.lock:
            cells = self._staged()
            if self._held.version != (self.version if self._applied else self._base) or self._held.torn is not None:
                raise BaseMismatch(
                    f"version {self.version} was staged for weights that hold {_name(self._base)}; they hold "
                    f"{_name(self._held.version)} now. Stage it again"
                )
            if not self._applied:
                self._write(cells)
        timeline.note("apply", began)
        phases = timeline.phases()
        result = PullResult(
            version=self.version,
            step=self.step,
            digest=self._entry.digest,
            nbytes=self.nbytes,
            objects=self.route.objects,
            changed=self.changed,
            avoided=self.avoided,
            phases=extents(phases),
            timeline=phases,
        )
        if self._tell is not None:
            self._tell(result)
        return result

    def undo(self) -> None:
        """Take ``apply`` back: the weights are again what they were. Idempotent.

        A prefetch for these weights does not offer this version again, until it was applied in another way.

        Raises:
            BaseMismatch: another version was applied since; pull the one that you want.
            InvalidArgument: what the weights held before was not known, so that it was not kept; or it was discarded.
        """
        with self._held.lock:
            cells = self._staged()
            if not self._applied:
                return
            if self._held.version != self.version:
                raise BaseMismatch(f"the weights hold {_name(self._held.version)} now; pull the version that you want")
            if cells.keyframe is not None or self._base is None:
                raise InvalidArgument(
                    "the weights were replaced whole, and what they held before was not kept; pull the version you want"
                )
            self._held.version, self._held.torn = self._base, cells.changes
            self._held.undo = [step for step in self._held.undo if step.target != self.version]
            self._held.undone, self._applied = self.version, False
            mend(self._target, self._held)

    def discard(self) -> None:
        """Give back files and memory; the weights stay as they are. Idempotent."""
        if self._cells is not None:
            self._cells.close()
            self._cells = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _staged(self) -> StagedCells:
        if self._cells is None:
            raise InvalidArgument(f"the staged version {self.version} was discarded")
        return self._cells

    def _write(self, cells: StagedCells) -> None:
        held, changes = self._held, cells.changes
        held.writes += 1
        sparse = cells.keyframe is None
        held.torn = changes if sparse else None
        if not sparse:
            held.forget()  # until all cells are written, the weights hold nothing known
        cells.store_into(self._context, self._target)
        held.torn = None
        held.version = self.version
        if held.undone == self.version:
            held.undone = None
        self._applied = True
        held.pulls += 1
        if sparse and self._base is not None and self._base != self.version:
            held.remember(UndoStep(self._base, self.version, changes), self._undo_limit)


def _name(version: int | None) -> str:
    return "nothing known" if version is None else f"version {version}"
