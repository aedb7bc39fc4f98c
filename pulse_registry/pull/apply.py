"""Application of a staged version to live weights, in place, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from pulse_registry.context import Context
from pulse_registry.errors import BaseMismatch, InvalidArgument, PulseError
from pulse_registry.format.sparse_update import HostUpdate
from pulse_registry.pull.base_check import check_all
from pulse_registry.pull.destination import Destination
from pulse_registry.pull.replica import ReplicaState, UndoStep
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.sliced_destination import SlicedDestination, SliceDigests
from pulse_registry.pull.stage import count_share, stage_version
from pulse_registry.pull.staged_cells import StagedCells
from pulse_registry.pull.tensor_change import TensorChange, by_tensor
from pulse_registry.pull.together import Checked, Found, Together
from pulse_registry.results import PullResult
from pulse_registry.timeline import extents
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.nonfinite import NonFinite, judge


@dataclass(frozen=True, slots=True)
class PullSettings:
    """What holds for all pulls of a worker.

    Attributes:
        undo_share: what is kept to go back in memory, at most, as a share of the weights' bytes.
        check_every: at which pulls all cells are compared with the version that they are taken for: every n-th; 0: at
            none. There is nothing to compare where nothing is known of them, or a keyframe leads to the version.
        nonfinite: what becomes of a version with NaN or infinities among the cells that would change.
        applied: is told of each result once the weights have changed; it neither waits nor fails.
        host_copy: whether ranks that hold parts of groups may have a whole copy in memory, one a node.
    """

    undo_share: float = 0.0
    check_every: int = 0
    nonfinite: NonFinite = "allow"
    applied: Callable[[PullResult], None] | None = None
    host_copy: bool = False

    def checks_all(self, replica: ReplicaState) -> bool:
        """Whether the next pull into these weights is one at which all cells are compared."""
        return self.check_every > 0 and (replica.pulls + 1) % self.check_every == 0


def stage_new(context: Context, request: PullRequest, settings: PullSettings) -> Staged:
    """Stage a version into weights that hold nothing, and that nobody has seen."""
    return stage_into(context, replace(request, new=True), settings, ReplicaState(), replace_all=True)


def stage_into(
    context: Context, request: PullRequest, settings: PullSettings, replica: ReplicaState, *, replace_all: bool = False
) -> Staged:
    """Stage a version into weights; ``replica`` is what they are known to hold, unless ``replace_all``.

    The weights may be changed meanwhile, by another staged version: nobody waits for a staging to end. This one then
    raises BaseMismatch.
    """
    destination, version = request.destination, request.entry.version
    with replica.lock:
        mend(destination, replica)
        holds, writes = replica.version, replica.writes
        request = on_base(request, replica, replace_all=replace_all)
        if isinstance(destination, SlicedDestination) and request.base is not None:
            destination.trust(replica.slices, holds, context.map_)
        full = settings.checks_all(replica)
    with ExitStack() as undo:
        try:
            cells = stage_version(context, request)
            undo.callback(cells.close)
            if settings.nonfinite != "allow":
                flat, what = cells.not_finite(), f"version {version}"
                judge(settings.nonfinite, destination.geometry, flat, what, request.state.run, context.events)
            if full:  # last, so that little time is left for others to change them
                _check_base(request, cells)
        except PulseError:
            _check_unchanged(replica, writes, version)  # what was found amiss may be nothing else
            raise
        _check_unchanged(replica, writes, version)
        undo.pop_all()
    return Staged(request, settings, replica, cells, base=holds)


def on_base(request: PullRequest, replica: ReplicaState, *, replace_all: bool) -> PullRequest:
    """Return the request with what the weights hold, where that is known and of the version's layout."""
    holds = None if replace_all else replica.version
    base = None if holds is None else request.state.find(holds)
    if base is None or base.layout != request.entry.layout:
        return replace(request, base=None, undo=())
    return replace(request, base=base, undo=tuple(reversed(replica.undo)))


def _check_base(request: PullRequest, cells: StagedCells) -> None:
    """Compare all cells with the version that they are taken for, unless they are not looked at on the route."""
    destination = request.destination
    if request.base is None or cells.route.base is None:
        return
    with request.timeline.during("verify"):
        if isinstance(destination, SlicedDestination):
            destination.check(request.base.version)
        else:
            check_all(destination, request.base)


def _check_unchanged(replica: ReplicaState, writes: int, version: int) -> None:
    with replica.lock:
        if replica.writes != writes:
            raise BaseMismatch(
                f"the weights were changed while version {version} was staged for them, and hold "
                f"{_name(replica.version)} now. Stage it again"
            )


def mend(destination: Destination, replica: ReplicaState) -> None:
    """Undo an application that was cut off: the weights are again the version that is remembered."""
    if replica.torn is not None:
        replica.writes += 1
        destination.undo(replica.torn)
        replica.torn = None


class Staged:
    """A version that is ready to be applied: fetched, checked, decoded. A context manager that discards at its end.

    Attributes:
        version: the version's number.
        step: the trainer's label of it.
        route: the objects that lead there.
        avoided: keys of the objects that are gone or damaged, so that another route was taken.
        nbytes: bytes of the route.
        changed: cells that ``apply`` will write.
        checked: ``state``: all cells of the version were compared with its state digest; ``slices``: what is stored of
            these slices, by its BLAKE3.
    """

    def __init__(
        self,
        request: PullRequest,
        settings: PullSettings,
        replica: ReplicaState,
        cells: StagedCells,
        *,
        base: int | None,
    ) -> None:
        self.version = request.entry.version
        self.step = request.entry.step
        self.route = cells.route
        self.avoided = cells.avoided
        self.nbytes = cells.nbytes
        self.changed = cells.changed
        self._request = request
        self._settings = settings
        self._replica = replica
        self._cells: StagedCells | None = cells
        self._base = base
        self._base_slices = replica.slices
        self._applied = False
        self.checked: Checked = "state" if cells.slices is None else "slices"
        self._together: Together | None = None

    @property
    def fits(self) -> bool:
        """Whether the weights hold what it was staged for, so that ``apply`` would change them."""
        return self._cells is not None and not self._applied and self._replica.version == self._base

    @property
    def whole(self) -> bool:
        """Whether ``apply`` will replace all cells, by a keyframe or a long chain; else it writes ``changes`` alone."""
        return self._staged().whole

    def changes(self) -> Iterator[TensorChange]:
        """Yield what ``apply`` will write, or has written, group by group and tensor by tensor; changes nothing.

        For whoever keeps a copy of the weights in a form of its own: cells come as raw bits, old and new; of slices,
        what they hold. Of weights on a GPU, each call copies the changes to host memory.

        Raises:
            InvalidArgument: it replaces all cells (``whole``): read them from the weights once it is applied; or it was
                discarded.
        """
        destination, update = self._request.destination, self.update()
        slices = destination.slices if isinstance(destination, SlicedDestination) else None
        return by_tensor(destination.geometry, update, slices)

    def update(self) -> HostUpdate:
        """Return ``changes`` by group of the weights' layout, of slices of their local one, in host memory.

        Raises:
            InvalidArgument: as ``changes``.
        """
        cells = self._staged()
        if cells.whole:
            raise InvalidArgument(f"version {self.version} replaces all cells: read them once it is applied")
        return self._request.destination.to_host(cells.update)

    def join(self, together: Together, checked: Checked) -> None:
        """Be applied and undone by all ranks or by none: ``apply`` and ``undo`` are collectives from here on."""
        self._together, self.checked = together, checked

    def renew(self, speaks: frozenset[int], settings: PullSettings) -> None:
        """Do for a pull that begins now what it does beyond staging, with what one rank has staged before.

        Args:
            speaks: numbers of the slices that count in its share.
            settings: of the pull.

        Raises:
            BaseMismatch: cells that are compared now are not those of the version that they are taken for.
        """
        cells = self._staged()
        with self._replica.lock:
            full = settings.checks_all(self._replica)
            count_share(self._request, cells, self._base_slices, speaks)
        if full:
            _check_base(self._request, cells)

    @property
    def found(self) -> Found:
        """What this rank has found, for all ranks to add up."""
        destination = self._request.destination
        sums = destination.base_sums if isinstance(destination, SlicedDestination) else None
        return Found(Digest() if self.slices is None else self.slices.share, sums)

    def check_open(self) -> None:
        """Compare all cells of slices with what was last written, where that was left to the sum of all ranks.

        Raises:
            BaseMismatch: they are others.
        """
        destination = self._request.destination
        if isinstance(destination, SlicedDestination) and destination.left_open:
            destination.check(self._base)

    @property
    def slices(self) -> SliceDigests | None:
        """Digests of the slices at the version; None: the weights are no slices, or it was discarded."""
        return None if self._cells is None else self._cells.slices

    def apply(self) -> PullResult:
        """Change the weights to the staged version, in place; addresses do not move. Idempotent.

        Of a registry with a process group it is a collective: all ranks apply it, or none, and all raise alike.

        Raises:
            BaseMismatch: another version was applied to the weights since this one was staged; nothing was changed.
            InvalidArgument: it was discarded.
            PeerLost: another rank is gone; nothing was changed.
        """
        timeline = self._request.timeline.copy()
        began = timeline.clock()
        with self._replica.lock:
            if self._together is not None:
                self._together.agree(self._check_ready, "apply")
            self._check_ready()
            if not self._applied:
                self._write(self._staged())
        timeline.note("apply", began)
        phases = timeline.phases()
        result = PullResult(
            version=self.version,
            step=self.step,
            digest=self._request.entry.digest,
            nbytes=self.nbytes,
            objects=self.route.objects,
            changed=self.changed,
            avoided=self.avoided,
            checked=self.checked,
            cells=self._request.entry.cells,
            phases=extents(phases),
            timeline=phases,
        )
        if self._settings.applied is not None:
            self._settings.applied(result)
        return result

    def undo(self) -> None:
        """Take ``apply`` back: the weights are again what they were. Idempotent.

        A prefetch for these weights does not offer this version again, until it was applied in another way. Of a
        registry with a process group it is a collective: all ranks undo it, or none, and all raise alike.

        Raises:
            PeerLost: another rank is gone; nothing was changed.
            BaseMismatch: another version was applied since; pull the one that you want.
            InvalidArgument: what the weights held before was not known, so that it was not kept; or it was discarded.
        """
        with self._replica.lock:
            if self._together is not None:
                self._together.agree(self._check_undoable, "undo")
            self._check_undoable()
            if not self._applied:
                return
            cells = self._staged()
            self._replica.version, self._replica.torn = self._base, cells.update
            self._replica.slices = self._base_slices
            self._replica.undo = [step for step in self._replica.undo if step.target != self.version]
            self._replica.undone, self._applied = self.version, False
            mend(self._request.destination, self._replica)

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

    def _check_ready(self) -> None:
        self._staged()
        if self._replica.version != (self.version if self._applied else self._base) or self._replica.torn is not None:
            raise BaseMismatch(
                f"version {self.version} was staged for weights that hold {_name(self._base)}; they hold "
                f"{_name(self._replica.version)} now. Stage it again"
            )

    def _check_undoable(self) -> None:
        cells = self._staged()
        if not self._applied:
            return
        if self._replica.version != self.version:
            raise BaseMismatch(f"the weights hold {_name(self._replica.version)} now; pull the version that you want")
        if cells.keyframe is not None or self._base is None:
            raise InvalidArgument(
                "the weights were replaced whole, and what they held before was not kept; pull the version you want"
            )

    def _staged(self) -> StagedCells:
        if self._cells is None:
            raise InvalidArgument(f"the staged version {self.version} was discarded")
        return self._cells

    def _write(self, cells: StagedCells) -> None:
        replica, update = self._replica, cells.update
        replica.writes += 1
        sparse = cells.keyframe is None
        replica.torn = update if sparse else None
        if not sparse:
            replica.forget()  # until all cells are written, the weights hold nothing known
        cells.store()
        replica.torn = None
        replica.version, replica.slices = self.version, cells.slices
        if replica.undone == self.version:
            replica.undone = None
        self._applied = True
        replica.pulls += 1
        if sparse and self._base is not None and self._base != self.version:
            limit = int(self._settings.undo_share * self._request.destination.geometry.nbytes)
            replica.remember(UndoStep(self._base, self.version, update), limit)


def _name(version: int | None) -> str:
    return "nothing known" if version is None else f"version {version}"
