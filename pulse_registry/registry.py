"""The registry: what trainers and workers call."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, overload

import numpy.typing as npt

from pulse_registry.client.reports import TakesReports, report_of
from pulse_registry.compaction import CompactOptions, Compactor
from pulse_registry.errors import InvalidArgument
from pulse_registry.log import RunState
from pulse_registry.log.files import fetch_file, fetch_file_set
from pulse_registry.log.names import tag_name
from pulse_registry.options import Options
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.session import OuterSession
from pulse_registry.pull.apply import Staged
from pulse_registry.pull.base_check import BaseCheck
from pulse_registry.pull.into import Into
from pulse_registry.pull.prefetch import Prefetch
from pulse_registry.pull.route import Route, plan
from pulse_registry.push.files import FilesArgument
from pulse_registry.results import PullResult, PushResult, Version, VersionName, describe
from pulse_registry.retention import GcResult, RetentionPolicy
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.outer import OuterRun
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.runtime.sharded_outer import ShardedOuterRun
from pulse_registry.signing.countersigning import Countersigning, RefusedRecord
from pulse_registry.stats import RunStats
from pulse_registry.stats.study import stats_of
from pulse_registry.store import Store
from pulse_registry.timeline import Timeline
from pulse_registry.weights.model import Model
from pulse_registry.weights.tensors import Framework, framework_of
from pulse_schemas import Layout, Signer, VersionEntry
from pulse_schemas.objects import Values
from pulse_schemas.outer import Weighting

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)


class Registry:
    """One run of a registry. Safe to share between threads; a context manager that waits for pushes at its end.

    Attributes:
        run: the run's name.
        url: of the store that holds it.
    """

    def __init__(
        self, store: Store, run: str, options: Options | None = None, *, dependencies: Dependencies | None = None
    ) -> None:
        """Open a run in a store; ``open`` does it by URL.

        Args:
            store: holds all runs.
            run: the run's name.
            options: how to work with it.
            dependencies: time, ids and threads; None for the real ones.
        """
        self._runtime = Runtime(store, run, options or Options(), dependencies or Dependencies())
        self.run, self.url = self._runtime.run, store.url
        self._reopening: Callable[[], object] | None = None

    @property
    def signer(self) -> Signer | None:
        """The signer of this registry's records; None: they are not signed."""
        return self._runtime.options.signer

    @property
    def ranks(self) -> int:
        """How many ranks pull together, those of the process group that it was opened with; 1: each by itself."""
        peers = self._runtime.options.peers
        return 1 if peers is None else peers.size

    # -- trainer ---------------------------------------------------------------------------------------------------
    @overload
    def push(
        self,
        step: SupportsIndex,
        model: Model,
        *,
        metadata: Mapping[str, Any] | None = None,
        files: FilesArgument | None = None,
        wait: Literal[True] = True,
    ) -> PushResult: ...
    @overload
    def push(
        self,
        step: SupportsIndex,
        model: Model,
        *,
        metadata: Mapping[str, Any] | None = None,
        files: FilesArgument | None = None,
        wait: Literal[False],
    ) -> Future[PushResult]: ...
    @overload
    def push(
        self,
        step: SupportsIndex,
        model: Model,
        *,
        metadata: Mapping[str, Any] | None = None,
        files: FilesArgument | None = None,
        wait: bool,
    ) -> PushResult | Future[PushResult]: ...
    def push(
        self,
        step: SupportsIndex,
        model: Model,
        *,
        metadata: Mapping[str, Any] | None = None,
        files: FilesArgument | None = None,
        wait: bool = True,
    ) -> PushResult | Future[PushResult]:
        """Publish the model's weights as the next version.

        Finds the cells that changed since the last push, stores them as a patch, and commits a record. The first
        version, and one with another layout, is stored whole. The first push of a process takes over the run: a
        writer that pushed to it before is fenced.

        Args:
            step: the trainer's own label, any integer of 64 bits; NumPy's are taken.
            model: an ``nn.Module``, or a mapping of names to torch tensors or NumPy arrays. Of a module, the names that
                ``torch.compile``, DDP, DataParallel, FSDP and checkpoint wrappers put in are left out. Of one that is
                sharded (DTensors, ``Slice``), each rank pushes what it holds: all ranks make the same calls, and get
                the same result or error. What is stored is what one process with the whole model would have stored.
            metadata: JSON values to keep with the version, at most 64 KiB of them; copied at once. NumPy's scalars are
                taken, NaN and infinities are not.
            files: small files to go along with this version and later ones: a folder with the configuration, the
                tokenizer and the chat template; or `Files`, which says by name what else, as code, goes along; or the
                files' bytes by name. They are read at once. None: those of the version before; where that has none, or
                another layout, the configuration of a transformers model is taken from ``model``. Of a sharded model,
                rank 0's count.
            wait: False returns after the diff; the rest happens in the background, in order, and the returned
                future holds the result or raises what went wrong. The model may be changed at once. While
                ``max_pending`` pushes are on their way, this waits for one before the diff (``when_full="wait"``), or
                takes the place of the newest one (``"coalesce"``).

        Raises:
            InvalidModel: a tensor can't be published, or the tensors are not those that ``expect`` says; nothing was
                written.
            InvalidArgument: the step, the metadata or the files are not valid; the registry is to work on a GPU, and
                the model is not on one; or it was closed.
            LayoutMismatch: ``allow_new_layout=False``, and the tensors are others than those of the version before.
            Fenced: another writer took over; this registry can't push any more.
            Conflict: another writer committed first; the next push carries these changes.
            StoreUnavailable: the store failed. Nothing is lost: the next push carries these changes.
            PeerLost: a rank of a sharded model is gone: open the registry anew, on all ranks.
            Any of these: an earlier push with ``wait=False`` failed so, and nobody has looked at its future. This one
                was not begun; the next one carries the changes of both. Of a sharded model, this one is on its way
                nevertheless, as on the other ranks.
        """
        future = self._runtime.publishing(model).push(step, model, metadata, files)
        return future.result() if wait else future

    def outer(
        self,
        model: Model,
        *,
        member: str,
        inner_steps: int = 8,
        lr: float = 0.7,
        momentum: float = 0.9,
        gain: float | None = 14.0,
        quorum: int = 1,
        grace: float = 60.0,
        silence: float | None = None,
        patience: int = 3,
        weighting: Weighting = "equal",
        values: Values = "levels",
    ) -> OuterSession:
        """Train a model together with others, in rounds of which each is a version of this run.

        Args:
            model: whose tensors are float32; the rounds start from the run's newest version, or from this model.
            member: name of this trainer, its own among all.
            inner_steps: of the inner optimizer in a round.
            lr, momentum: of the outer optimizer, SGD with Nesterov's momentum.
            gain: of the gate, which passes a cell where BF16(theta) and BF16(theta - gain s) are other bits; s is what
                was not sent yet. 1 is the rule of the PULSE paper; ``lr / (1 - momentum)`` is how far the outer
                optimizer moves a cell in the end, and the default twice that; None passes all cells (DiLoCo).
            quorum: contributions that a round needs.
            grace: seconds from the quorum on after which a round is closed without the late.
            silence: seconds without a new record of any member after which this one gives up a round that lacks its
                quorum, as others have died (``QuorumLost``); None: it waits for ever.
            patience: closed rounds that a member may miss before nobody waits for it.
            weighting: of contributions: ``equal``, or by the ``steps`` that each member has made.
            values: that are sent: ``levels``, small integers, or ``float32`` ones, the payload of the PULSE paper, at
                several times the bytes.

        Returns:
            A context manager: it joins, and leaves at its end. See ``OuterSession``.

        Raises:
            InvalidArgument: an option is not valid.
        """
        options = OuterOptions(
            member,
            inner_steps,
            lr,
            momentum,
            gain,
            quorum,
            patience,
            weighting,
            grace,
            values=values,
            silence_s=silence,
        )
        peers = self._runtime.outer_peers(model)
        run = OuterRun(self._runtime) if peers is None else ShardedOuterRun(self._runtime, *peers)
        return run.session(model, options)

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
        self._runtime.publishing(model).take_over(model)
        state = self._runtime.reader.state
        return None if state.latest is None else describe(state, state.latest)

    # -- worker ----------------------------------------------------------------------------------------------------

    def stage(
        self,
        version: VersionName = "latest",
        *,
        into: Model,
        replace: bool = False,
        cast: bool = False,
        check: BaseCheck | None = None,
        partial: bool = False,
    ) -> Staged:
        """Fetch, check and decode all that leads to a version; ``apply`` on the result then changes the weights.

        Of a registry with a process group this is a collective, as are ``apply`` and ``undo`` of the result: all ranks
        call it, and what one of them raises, all raise.

        Args:
            version: a number or ``"latest"``; with a process group, that of the first rank counts.
            into: the worker's weights, a module or a mapping of writable tensors, in host memory or on a GPU; they are
                only read here, and may be serving. What a module's ``state_dict`` gives must be its own memory, and no
                copy.
            replace: take ``into`` as holding nothing known.
            cast: where the version is BF16 or F16, and ``into`` F32 in host memory, write each number as the same one
                in F32. ``into`` then holds the version for as long as it holds these numbers.
            check: which cells must be those of the version that ``into`` is known to hold: ``"touched"``, those that
                change; ``"all"``, compared as the last step, so that what others write between that and ``apply`` is
                not seen; n, all of them at every n-th pull. None: as the registry was opened.
            partial: tensors of the version may be missing from ``into``: a rank of a pipeline, or of expert
                parallelism, holds only some.

        Raises:
            NotFound: there is no such version, or no route to it that these slices can take.
            Gone: it was retired.
            LayoutMismatch, InvalidModel: ``into`` can't take this version.
            BaseMismatch: cells that were checked were changed since they were pulled.
            InvalidArgument: ``check`` is none of these.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the version can't be read.
        """
        timeline, puller = Timeline(), self._runtime.puller
        held = puller.into(into, cast=cast, replace=replace, check=check, partial=partial)
        return puller.stage(version, held, timeline)

    def pull(
        self,
        version: VersionName = "latest",
        *,
        into: Model,
        replace: bool = False,
        cast: bool = False,
        check: BaseCheck | None = None,
        partial: bool = False,
    ) -> PullResult:
        """Bring weights to a version, bit for bit: ``stage`` and ``apply`` in one.

        Of two threads that pull into the same weights, one waits for the other.

        Raises:
            PulseError: as ``stage``; the weights are then as they were.
        """
        timeline, puller = Timeline(), self._runtime.puller
        held = puller.into(into, cast=cast, replace=replace, check=check, partial=partial)
        return puller.pull(version, held, timeline)

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
        return self._runtime.puller.load(version, framework, timeline)

    def prefetch(
        self,
        *,
        into: Model,
        poll_seconds: float = 0.5,
        cast: bool = False,
        check: BaseCheck | None = None,
        partial: bool = False,
    ) -> Prefetch:
        """Keep the newest version staged in the background, for these weights: ``take`` it, then ``apply`` it.

        Of a registry with a process group, each rank stages what it holds, when it hears of a version: this is no
        collective, and a rank need not do it. ``take`` is one, by what the first rank has ready. ``stage`` and ``pull``
        of the version that a rank has ready use it, too.

        Args:
            into: as for ``stage``; they are only read, and may be serving.
            poll_seconds: between two looks at a bucket's log; a service tells of a new version at once.
            cast, check, partial: as for ``stage``.

        Raises:
            InvalidArgument: ``check`` is not valid.
            InvalidModel: ``into`` is no model, or can't be changed in place.
        """
        self._runtime.check_process()
        puller = self._runtime.puller

        def held(*, alone: bool) -> Into:
            return puller.into(into, cast=cast, check=check, partial=partial, alone=alone)

        def stage(version: VersionName) -> Staged:
            if self._runtime.options.peers is not None:
                return puller.stage(version, held(alone=True), Timeline(), alone=True)
            return self.stage(version, into=into, cast=cast, check=check, partial=partial)

        return puller.prefetch(held, stage, poll_seconds, self._runtime.events)

    def verify(
        self,
        version: VersionName = "latest",
        *,
        model: Model | None = None,
        cast: bool = False,
        partial: bool = False,
    ) -> Version:
        """Check a model, or the stored objects of a version, against its state digest by a full pass.

        It is no collective, but for a model with ``PullOptions(host_copy=True)`` and a process group.

        Args:
            version: a number or ``"latest"``; if it is retired meanwhile, what its name then means.
            model: weights that should hold the version; if they do, that is remembered, so that the next pull into
                them needs patches only. None: the objects on the version's route are fetched and checked.
            cast, partial: as for ``stage``. Slices are compared with what is stored of them, which is fetched.

        Raises:
            LayoutMismatch: the model has other tensors.
            BaseMismatch: the model's cells are not those of the version.
            CorruptObject: an object is damaged.
        """
        runtime = self._runtime

        def checked(state: RunState, entry: VersionEntry) -> Version:
            if model is None:
                runtime.puller.verify_stored(runtime.uncached(), state, entry)
            else:
                runtime.puller.verify_model(state, entry, model, cast=cast, partial=partial)
            return describe(state, entry)

        return runtime.puller.of(version, checked)

    def report(self, name: str, result: PullResult) -> None:
        """Tell the service which version a worker serves, and how its last pull went; ``open(name=...)`` does it after
        each.

        Raises:
            InvalidArgument: the worker's name is not valid; or there is no service: a bucket takes no reports.
            AccessDenied, NotFound, StoreUnavailable: the service did not take it.
        """
        self._runtime.check_process()
        gateway = self._runtime.stores.gateway
        if not isinstance(gateway, TakesReports):
            raise InvalidArgument(f"{self.url} is no service, and a bucket takes no reports; open https://...")
        gateway.report(self.run, name, report_of(result))

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
        self._runtime.warm_up(model)

    # -- versions --------------------------------------------------------------------------------------------------

    def state(self) -> RunState:
        """Read what is new in the log and return the run's state; of a run that does not exist, the empty one."""
        return self._runtime.versions.state()

    def versions(self) -> list[Version]:
        """Return all versions, oldest first; retired ones are left out."""
        return self._runtime.versions.all()

    def version(self, version: VersionName | None = None, *, step: int | None = None) -> Version:
        """Return one version, by number, as ``"latest"`` (the default), or the newest one of a trainer's step.

        Raises:
            NotFound: there is none.
        """
        return self._runtime.versions.one(version, step)

    def layout(self, version: VersionName = "latest") -> Layout:
        """Return the names, dtypes and shapes of a version's tensors.

        Raises:
            NotFound: there is no such version.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the layout can't be read.
        """
        _, entry = self._runtime.versions.found(version)
        return self._runtime.context().geometry(entry.layout).layout

    def files(self, version: VersionName = "latest") -> dict[str, bytes]:
        """Return the small files that go with a version, by name: its configuration, tokenizer, chat template.

        Each is checked by its hash. Names are plain ones. What a file that is no data holds, as one that ends with
        ``.py``, is code that the trainer has sent along by its name: judge whom you trust before you run it.

        Raises:
            NotFound: there is no such version.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the files can't be read.
        """
        (_, entry), context = self._runtime.versions.found(version), self._runtime.context()
        if entry.files is None:
            return {}
        named = fetch_file_set(context.store, entry.files).files
        return {name: fetch_file(context.store, name, said) for name, said in sorted(named.items())}

    def route(self, version: VersionName = "latest", *, have: int | None = None) -> Route:
        """Choose the cheapest route to a version from the one that a worker has, or from nothing.

        Raises:
            NotFound: a version does not exist, or nothing leads there.
        """
        runtime = self._runtime
        state, target = runtime.versions.found(version)
        return plan(state, target.version, have=have, prices=runtime.stores.prices())

    def stats(
        self,
        first: VersionName | None = None,
        last: VersionName = "latest",
        *,
        weights: bool = False,
        keep: str | os.PathLike[str] | None = None,
    ) -> RunStats:
        """Count what the steps of the run change: exact numbers of cells, by tensor, layer, kind, size and exponent.

        It only reads: the patches of ``gap``, each once, and with ``weights`` a keyframe and all patches. It works with
        this registry's threads (``ComputeOptions(threads=1)`` where a trainer needs the others), and with about 300 MB
        of memory, 450 MB with the weights, however large the model is; where steps change most cells, up to 1 GB.

        Args:
            first: the version to begin with; None: the 1,000th before ``last``.
            last: the version to end with.
            weights: follow the weights, too, which takes a keyframe: then signs and exponents are known, and the steps
                of ``class`` patches and keyframes.
            keep: a file of yours, in which the counts are kept: the next call that names it reads new steps alone.

        Raises:
            InvalidArgument: ``first`` is newer than ``last``, or the file can't be read or written.
            NotFound: there is no such version; or an object is gone.
            CorruptObject, UnsupportedFormat, StoreUnavailable: an object can't be read.
        """
        runtime = self._runtime
        path = None if keep is None else Path(keep)
        return stats_of(runtime.uncached(), runtime.versions, first, last, weights=weights, keep=path)

    def watch(
        self,
        after: int | None = None,
        *,
        latest_only: bool = False,
        poll_seconds: float = 0.5,
        timeout: float | None = None,
    ) -> Iterator[Version]:
        """Yield versions newer than ``after``, as they are committed; without it, those newer than now.

        Over a bucket it tails the log: a look costs one GET. A service answers as soon as there is something new, so
        that a version costs one request.

        Args:
            after: a version's number; -1 begins with the first one.
            latest_only: yield the newest of what is new at each look and skip those before it, so that who takes
                longer over a version than the trainer does not fall behind.
            poll_seconds: between two looks at a bucket's log.
            timeout: ends after so many seconds without a new version; None: never.
        """
        versions = self._runtime.versions
        return versions.watch(after, latest_only=latest_only, poll_seconds=poll_seconds, timeout=timeout)

    def tags(self) -> dict[str, int]:
        """Return the names that stand for versions."""
        return dict(sorted(self.state().tags.items()))

    def tag(self, name: str, version: VersionName | None) -> int | None:
        """Give a version a name, which ``pull`` takes for it, and which keeps it for as long; None takes the name away.

        ``tags`` tells which version a name stands for.

        Returns:
            The version that the name stood for until now, which it does not keep any more; None if it stood for none.

        Raises:
            InvalidArgument: it is no name (a letter first, then those, 0 to 9, '.', '_' and '-', at most 64; not
                ``latest``), or the version was retired.
            NotFound: there is no such version.
            AccessDenied, StoreUnavailable: the store did not take it.
        """
        name = tag_name(name)
        writer = self._runtime.writer()
        return writer.tag(name, None if version is None else self._runtime.versions.found(version)[1].version)

    # -- upkeep ----------------------------------------------------------------------------------------------------

    def compactor(self, options: CompactOptions | None = None) -> Compactor:
        """Return the run's compactor: each call of ``step`` makes and attaches one merged patch or keyframe.

        It merges the contributions to outer rounds, too, so that who joins fetches one object a round.

        It works with this registry's threads and is for one thread at a time; close it before the registry.

        Raises:
            InvalidArgument: an option is out of range.
        """
        return self._runtime.compactor(self._runtime.context(), options or CompactOptions(), rounds=True)

    def gc(self, policy: RetentionPolicy | None = None, *, dry_run: bool = True) -> GcResult:
        """Retire the versions that a policy does not keep, and delete what was retired longer ago than its grace time.

        Args:
            policy: what is kept, beside tagged versions, and what workers with a lease need; None: `RetentionPolicy()`.
            dry_run: only look, and tell what would be done.

        Raises:
            NotFound: there is no such run.
            InvalidArgument: this is a service, which does it itself.
            CorruptObject, UnsupportedFormat, Untrusted: the log, or a lease, can't be read.
            AccessDenied, StoreUnavailable: the store did not do it; run it again.
        """
        with self._runtime.threads("pulse-gc") as pool:
            return self._runtime.collector(pool).collect(policy or RetentionPolicy(), dry_run=dry_run)

    def refused_records(self) -> list[RefusedRecord]:
        """Read the whole log and return its records that readers with this one's pins refuse, oldest first.

        Raises:
            NotFound: there is no such run.
            InvalidArgument: no keys are pinned; or this is a service: go to the bucket.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        with self._countersigning() as found:
            return found.refused()

    def countersign(self, until: str) -> list[RefusedRecord]:
        """Answer, with this registry's signing key, for the records that readers refuse, up to one; return them.

        From then on readers that pin the key believe these records as if it had signed them. Look at all of them first
        (``refused_records``): who countersigns a record is its author.

        Args:
            until: the ``name`` of the newest one.

        Raises:
            Untrusted: there is no signing key, or one that may not sign such a record; nothing was written.
            Conflict: the log has changed since: look again; nothing was written.
            NotFound, InvalidArgument, CorruptObject, UnsupportedFormat, StoreUnavailable: as ``refused_records``.
        """
        with self._countersigning() as found:
            return found.countersign(until)

    @contextmanager
    def _countersigning(self) -> Iterator[Countersigning]:
        with self._runtime.threads("pulse-log") as pool:
            yield self._runtime.countersigning(pool)

    # -- life ------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Wait for pushes and reports under way, stop the threads, close connections. Idempotent.

        What it waits for is logged: at once, and as a warning every few seconds. In a process that was forked from the
        one that opened it, it does nothing: all of that is the parent's.

        Args:
            timeout: seconds for the pushes that are on their way, and for what prefetches and a compactor have begun;
                None: as long as it takes. A report and a lease take a few more, where the store is away.

        Raises:
            StoreUnavailable: something was not done in time, and goes on; the message names it, and the steps of
                pushes. Close again to go on waiting.
            PulseError: a push with ``wait=False`` failed, and nobody has looked at its future. All is closed.
        """
        unseen = self._runtime.end(timeout)
        if unseen is not None:
            raise unseen

    def __repr__(self) -> str:
        runtime = self._runtime
        seen, name = runtime.reader.seen, runtime.options.name
        version = None if seen is None or seen.latest is None else seen.latest.version
        said = [f"url={self.url.partition('?')[0]!r}", f"run={self.run!r}"]
        said += [] if name is None else [f"name={name!r}"]
        said += [f"newest={version}", "closed" if runtime.closed else "open"]
        return f"<{type(self).__name__} {' '.join(said)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unseen = self._runtime.end()
        if unseen is not None and error is None:
            raise unseen
        if unseen is not None:
            _logger.error("run %s: a push failed, and its future was never read: %r", self.run, unseen)

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        """Travel as what ``open`` was called with, but for the token and the signing key, and open the run anew there.

        Raises:
            InvalidArgument: another process can't open it.
        """
        if self._reopening is None:
            raise InvalidArgument(
                f"this registry of run {self.run!r} was made of a store, not of a URL, and can't be pickled: "
                "call pulse_registry.open where it is needed"
            )
        if self.url.startswith("memory://"):
            raise InvalidArgument(f"{self.url} is in this process's memory, and no other can open it: use a folder")
        return self._reopening, ()

    def pickles_as(self, reopening: Callable[[], object], *, lacks_key: bool = False) -> None:
        """Take what opens the run again where this registry is unpickled; ``open`` and unpickling do it.

        With ``lacks_key`` it came here without the key that it signs with, and nothing is written.
        """
        self._reopening, self._runtime.lacks_key = reopening, lacks_key
