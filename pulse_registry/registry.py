"""The registry: what trainers and workers call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar, overload

import numpy.typing as npt

from pulse_registry.catalogue import Catalogue
from pulse_registry.client.reports import TakesReports, report_of
from pulse_registry.compaction import CompactOptions, Compactor
from pulse_registry.errors import BaseMismatch, CorruptObject, Gone, InvalidArgument
from pulse_registry.log import RunState
from pulse_registry.log.tail import await_news
from pulse_registry.pull.apply import Staged, stage_into
from pulse_registry.pull.base_check import BaseCheck, pulls_a_check
from pulse_registry.pull.destination import HostDestination
from pulse_registry.pull.prefetch import WAIT_SECONDS, Prefetch
from pulse_registry.pull.replica import ReplicaState
from pulse_registry.push.labels import checked_metadata, integer
from pulse_registry.results import PullResult, PushResult, Version, VersionName, describe
from pulse_registry.runtime.placement import destination, digest
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.backend import backend_of
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import Model, View, read_destination, read_model
from pulse_registry.weights.tensors import Framework, framework_of, new_tensors
from pulse_schemas import VersionEntry

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")


class Registry(Catalogue):
    """One run of a registry. Safe to share between threads; a context manager that waits for pushes at its end."""

    # -- trainer ---------------------------------------------------------------------------------------------------

    @overload
    def push(
        self,
        step: SupportsIndex,
        model: Model,
        *,
        metadata: Mapping[str, Any] | None = None,
        wait: Literal[True] = True,
    ) -> PushResult: ...
    @overload
    def push(
        self, step: SupportsIndex, model: Model, *, metadata: Mapping[str, Any] | None = None, wait: Literal[False]
    ) -> Future[PushResult]: ...
    @overload
    def push(
        self, step: SupportsIndex, model: Model, *, metadata: Mapping[str, Any] | None = None, wait: bool
    ) -> PushResult | Future[PushResult]: ...
    def push(
        self, step: SupportsIndex, model: Model, *, metadata: Mapping[str, Any] | None = None, wait: bool = True
    ) -> PushResult | Future[PushResult]:
        """Publish the model's weights as the next version.

        Finds the cells that changed since the last push, stores them as a patch, and commits a record. The first
        version, and one with another layout, is stored whole. The first push of a process takes over the run: a
        writer that pushed to it before is fenced.

        Args:
            step: the trainer's own label, any integer of 64 bits; NumPy's are taken.
            model: an ``nn.Module``, or a mapping of names to torch tensors or NumPy arrays. Of a module, the names that
                ``torch.compile``, DDP, DataParallel, FSDP and checkpoint wrappers put in are left out.
            metadata: JSON values to keep with the version, at most 64 KiB of them; copied at once. NumPy's scalars are
                taken, NaN and infinities are not.
            wait: False returns after the diff; the rest happens in the background, in order, and the returned
                future holds the result or raises what went wrong. The model may be changed at once. While
                ``max_pending`` pushes are on their way, this waits for one before the diff (``when_full="wait"``), or
                takes the place of the newest one (``"coalesce"``).

        Raises:
            InvalidModel: a tensor can't be published; nothing was written.
            InvalidArgument: the step or the metadata are not valid; the registry is to work on a GPU, and the model is
                not on one; or it was closed.
            LayoutMismatch: ``allow_new_layout=False``, and the tensors are others than those of the version before.
            Fenced: another writer took over; this registry can't push any more.
            Conflict: another writer committed first; the next push carries these changes.
            StoreUnavailable: the store failed. Nothing is lost: the next push carries these changes.
            Any of these: an earlier push with ``wait=False`` failed so, and nobody has looked at its future. This one
                was not begun; the next one carries the changes of both.
        """
        label, kept = integer(step, "step"), checked_metadata(metadata)
        future = self._publishing().push(label, model, kept)
        return future.result() if wait else future

    def take_over(self, model: Model) -> Version | None:
        """Begin as the run's trainer now, and not at the first push, which then has nothing to fetch.

        A writer that pushed before is fenced. What pushes are diffed against, a copy of the newest version, is made: of
        ``model``, which is only read, if that is a version already. So call it when the model has been pulled, or has
        been loaded from your own checkpoint, before it is trained: then nothing is fetched, or only the patches since.

        Returns:
            The newest version, to go on from; None: the run has none.

        Raises:
            InvalidModel, LayoutMismatch, Fenced, StoreUnavailable: as ``push``.
        """
        self._publishing().take_over(model)
        latest = self._reader.state.latest
        return None if latest is None else describe(self._reader.state, latest)

    # -- worker ----------------------------------------------------------------------------------------------------

    def stage(
        self,
        version: VersionName = "latest",
        *,
        into: Model,
        replace: bool = False,
        cast: bool = False,
        check: BaseCheck | None = None,
    ) -> Staged:
        """Fetch, check and decode all that leads to a version; ``apply`` on the result then changes the weights.

        Args:
            version: a number or ``"latest"``.
            into: the worker's weights, a module or a mapping of writable tensors, in host memory or on a GPU; they are
                only read here, and may be serving. What a module's ``state_dict`` gives must be its own memory, and no
                copy.
            replace: take ``into`` as holding nothing known.
            cast: where the version is BF16 or F16, and ``into`` F32 in host memory, write each number as the same one
                in F32. ``into`` then holds the version for as long as it holds these numbers.
            check: which cells must be those of the version that ``into`` is known to hold: ``"touched"``, those that
                change; ``"all"``, compared as the last step, so that what others write between that and ``apply`` is
                not seen; n, all of them at every n-th pull. None: as the registry was opened.

        Raises:
            NotFound: there is no such version.
            LayoutMismatch, InvalidModel: ``into`` can't take this version.
            BaseMismatch: cells that were checked were changed since they were pulled.
            InvalidArgument: ``check`` is none of these.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the version can't be read.
        """
        timeline, views = Timeline(), read_destination(into)
        return self._stage(version, views, self._replicas.of(views), replace, cast, check, timeline)

    def pull(
        self,
        version: VersionName = "latest",
        *,
        into: Model,
        replace: bool = False,
        cast: bool = False,
        check: BaseCheck | None = None,
    ) -> PullResult:
        """Bring weights to a version, bit for bit: ``stage`` and ``apply`` in one.

        Of two threads that pull into the same weights, one waits for the other.

        Raises:
            As ``stage``; the weights are then as they were.
        """
        timeline, views = Timeline(), read_destination(into)
        held = self._replicas.of(views)
        with held.pulling, self._stage(version, views, held, replace, cast, check, timeline) as staged:
            return staged.apply()

    @overload
    def load(self, version: VersionName = "latest", *, framework: Literal["auto"] = "auto") -> dict[str, Any]: ...
    @overload
    def load(self, version: VersionName = "latest", *, framework: Literal["torch"]) -> dict[str, torch.Tensor]: ...
    @overload
    def load(self, version: VersionName = "latest", *, framework: Literal["numpy"]) -> dict[str, npt.NDArray[Any]]: ...
    def load(self, version: VersionName = "latest", *, framework: Framework = "auto") -> dict[str, Any]:
        """Return a version as new tensors by name, in host memory; tied names are the same tensor.

        What they hold is remembered: to ``pull`` into them later needs patches only.

        Args:
            version: a number or ``"latest"``.
            framework: whose tensors: ``"torch"``, ``"numpy"`` (BF16 and FP8 as the dtypes of ml_dtypes), or ``"auto"``:
                torch where it is installed, else NumPy.

        Raises:
            InvalidArgument: there is no such framework, or torch is not installed.
            NotFound, CorruptObject, UnsupportedFormat, StoreUnavailable: as ``stage``.
        """
        framework, timeline = framework_of(framework), Timeline()

        def loaded(state: RunState, entry: VersionEntry) -> dict[str, Any]:
            context = self._working()
            weights = Weights.empty(context.geometry(entry.layout))
            with stage_into(
                context,
                state,
                entry,
                HostDestination(weights, context.backend, context.pool),
                None,
                replace=True,
                undo_limit=0,
                timeline=timeline,
                applied=self._applied,
                nonfinite=self._nonfinite,
            ) as staged:
                staged.apply()
            tensors = new_tensors(weights, framework)
            self._replicas.of(read_model(tensors)).now_at(entry.version)
            return tensors

        return self._of(version, loaded)

    def prefetch(
        self, into: Model, *, poll_seconds: float = 0.5, cast: bool = False, check: BaseCheck | None = None
    ) -> Prefetch:
        """Keep the newest version staged in the background, for these weights: ``take`` it, then ``apply`` it.

        Args:
            into: as for ``stage``; they are only read, and may be serving.
            poll_seconds: between two looks at a bucket's log; a service tells of a new version at once.
            cast, check: as for ``stage``.

        Raises:
            InvalidArgument: ``check`` is not valid.
            InvalidModel: ``into`` is no model, or can't be changed in place.
        """
        self._check_process()
        held = self._replicas.of(read_destination(into))

        def news(state: RunState | None, sleep: Callable[[float], object]) -> RunState:
            if state is None:
                return self.state()
            follow = functools.partial(await_news, self._reader, self._gateway, state, sleep=sleep)
            return follow(poll_seconds=poll_seconds, timeout_s=WAIT_SECONDS)

        def number(version: VersionName) -> int:
            return self._entry(self.state(), version).version

        def stage(version: VersionName) -> Staged:
            return self.stage(version, into=into, cast=cast, check=check)

        if check is not None:
            pulls_a_check(check)
        made = Prefetch(stage, number, news, held, self._events, self.run)
        self._prefetches.add(made)
        return made

    def verify(self, version: VersionName = "latest", model: Model | None = None, *, cast: bool = False) -> Version:
        """Check a model, or the stored objects of a version, against its state digest by a full pass.

        Args:
            version: a number or ``"latest"``.
            model: weights that should hold the version; if they do, that is remembered, so that the next pull into
                them needs patches only. None: the objects on the version's route are fetched and checked.
            cast: as for ``stage``.

        Raises:
            LayoutMismatch: the model has other tensors.
            BaseMismatch: the model's cells are not those of the version.
            CorruptObject: an object is damaged.
        """
        state = self.state()
        entry = self._entry(state, version)
        context = self._working()
        geometry = context.geometry(entry.layout)
        if model is None:
            context = self._past_cache(context)  # it is the stored objects that are to be checked, not copies of them
            held, weights = None, Weights.empty(geometry)
            with stage_into(
                context,
                state,
                entry,
                HostDestination(weights, context.backend, context.pool),
                None,
                replace=True,
                undo_limit=0,
                timeline=Timeline(),
            ) as staged:
                staged.apply()
            found = weights.digest(context.backend, context.map_)
        else:
            views = read_model(model)
            held, found = self._replicas.of(views), digest(context, self._placement, geometry, views, cast=cast)
        if found != Digest.parse(entry.digest):
            raise (CorruptObject if model is None else BaseMismatch)(
                f"the cells are not those of version {entry.version}: their state digest is {found.hex()}, "
                f"{entry.digest} was committed"
            )
        if held is not None:
            held.now_at(entry.version)
        return describe(state, entry)

    def compactor(self, options: CompactOptions | None = None) -> Compactor:
        """Return what makes the run's merged patches and keyframes, a piece of work at each call of ``step``.

        It works with this registry's threads and is for one thread at a time; close it before the registry.

        Raises:
            InvalidArgument: an option is out of range.
        """
        return self._compactor(self._working(), options or CompactOptions())

    def report(self, name: str, result: PullResult) -> None:
        """Tell the service which version a worker serves, and how its last pull went; ``open(name=...)`` does it after
        each.

        Raises:
            InvalidArgument: the worker's name is not valid; or there is no service: a bucket takes no reports.
            AccessDenied, NotFound, StoreUnavailable: the service did not take it.
        """
        self._check_process()
        if not isinstance(self._gateway, TakesReports):
            raise InvalidArgument(f"{self.url} is no service, and a bucket takes no reports; open https://...")
        self._gateway.report(self.run, name, report_of(result))

    def warm_up(self, model: Model | None = None) -> None:
        """Compile the kernels, or load them from their cache on disk, so that no push or pull waits for it.

        A registry that ``open`` returned does it for host memory, in the background, from its first push or pull on;
        those of a GPU are compiled at their first launch. Call this before, in a thread of yours if need be, where even
        the first push or pull must not wait.

        Args:
            model: what is to be pushed, or pulled into. Of one on a GPU, that is worked on there, the kernels for its
                dtypes are made ready; its weights are neither read nor written. None: the kernels for host memory.

        Raises:
            InvalidModel: it is no model.
            InvalidArgument: the registry is to work on a GPU, and the model is not on one.
        """
        views = None if model is None else read_model(model)
        device = None if views is None else self._placement(views)
        if views is None or device is None:
            backend_of(self._backend_name).warm_up(2)
            return
        from pulse_registry.gpu.warm_up import warm_up

        warm_up({view.dtype for view in views.values()}, device)

    def _of(self, version: VersionName, use: Callable[[RunState, VersionEntry], Result]) -> Result:
        """Return what ``use`` makes of a version; if that is retired meanwhile, of the one that its name then means."""
        while True:
            state = self.state()
            entry = self._entry(state, version)
            try:
                return use(state, entry)
            except Gone:
                if isinstance(version, int) or self._entry(self.state(), version).version == entry.version:
                    raise

    def _stage(
        self,
        version: VersionName,
        views: Mapping[str, View],
        held: ReplicaState,
        replace: bool,
        cast: bool,
        check: BaseCheck | None,
        timeline: Timeline,
    ) -> Staged:
        every = self._check_every if check is None else pulls_a_check(check)

        def staged(state: RunState, entry: VersionEntry) -> Staged:
            context = self._working()
            geometry = context.geometry(entry.layout)
            return stage_into(
                context,
                state,
                entry,
                destination(context, self._placement, geometry, views, cast=cast),
                held,
                replace=replace,
                undo_limit=int(self._undo_share * geometry.nbytes),
                timeline=timeline,
                applied=self._applied,
                nonfinite=self._nonfinite,
                check_every=every,
            )

        return self._of(version, staged)

    def _applied(self, result: PullResult) -> None:
        if self._lease is not None:
            self._lease.hold(result.version)
        if self._reporter is not None:
            self._reporter.tell(result)
        for prefetch in list(self._prefetches):
            prefetch.wake()
