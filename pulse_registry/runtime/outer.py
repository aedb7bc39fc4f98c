"""A run as outer rounds need it: its versions, loaded, compared and pushed; its writer's term taken over and over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pulse_kernels import Cells
from pulse_registry.errors import Conflict, Gone, InvalidArgument, NotFound
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.replay import Replayed, replay
from pulse_registry.outer.run import Run
from pulse_registry.outer.session import OuterSession
from pulse_registry.outer.state import OuterState
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.process.closing import Closing
from pulse_registry.push.publisher import Publisher
from pulse_registry.push.whole_groups import fetch_groups
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.dtypes import numpy_dtype
from pulse_registry.weights.model import Model, PublishDtype
from pulse_schemas.outer import RestartRecord


class OuterRun:
    """The versions of a run. A writer whose term another member has taken over begins a new one at its next turn."""

    def __init__(self, runtime: Runtime) -> None:
        """Prepare; no I/O yet."""
        self._runtime = runtime
        self._publisher: Publisher | None = None

    def session(self, model: Model, options: OuterOptions) -> OuterSession:
        """Return a session of a model."""
        runtime, around, context = self._runtime, self._runtime.dependencies, self._runtime.context()
        runtime.stores.write_at_home()
        run = Run(
            runtime.run,
            runtime.stores.store,
            context.backend,
            self,
            self.newest,
            context.geometry,
            self.load,
            threads=around.threads,
            each=context.map_,
            spool=context.spool,
            events=runtime.events,
            clock=around.clock,
            new_id=around.new_id,
            wait=self.wait,
            signer=runtime.signer(),
            guard=runtime.outer_guard(),
        )
        return OuterSession(run, model, options, clock=around.monotonic, sleep=around.sleep)

    def log(self, *, whole: bool = False) -> OuterLog:
        """Return the log of the rounds; ``whole`` as the log has it."""
        runtime = self._runtime
        threads = None if runtime.stores.gateway is not None else runtime.dependencies.threads
        return OuterLog(runtime.stores.store, runtime.run, None, runtime.outer_guard(), threads, whole=whole)

    def restart(self) -> RestartRecord | None:
        """Let rounds begin anew from the newest version, whoever pushed it; None: they have, and none has ended since.

        Raises:
            NotFound: there are no outer rounds.
            InvalidArgument: the newest version is of another layout, or is the one that the rounds first began with; or
                that of the newest round is not there yet; or through a service, as it refuses the record.
            Fenced, Mirrored: the run lives elsewhere.
            CorruptObject, UnsupportedFormat, Untrusted, StoreUnavailable: a log can't be read, or written.
        """
        runtime = self._runtime
        runtime.stores.write_at_home()
        log = OuterLog(runtime.stores.store, runtime.run, runtime.signer(), runtime.outer_guard())

        def wanted(state: OuterState, common: dict[str, Any]) -> RestartRecord | None:
            newest = runtime.reader.refresh().latest
            start = state.start
            if start is None or newest is None:
                raise NotFound(f"run {state.run!r} has no outer rounds")
            round_ = newest.version - start.version
            if newest.layout != start.layout:
                raise InvalidArgument(
                    f"the rounds of run {state.run!r} are of layout {start.layout}, and version {newest.version} is of "
                    f"{newest.layout}: push a version of theirs, or begin another run"
                )
            if round_ < state.open - 1:
                raise InvalidArgument(
                    f"round {state.open - 1} of run {state.run!r} has ended, and its version, {start.version} + "
                    f"{state.open - 1}, is not there yet: the next member that joins pushes it. If none can, since a "
                    "contribution is gone or damaged, push the newest version once more in its place"
                )
            if not round_:
                raise InvalidArgument(
                    f"the rounds of run {state.run!r} began with version {newest.version}, and nobody has pushed one "
                    "since: members can join"
                )
            if round_ == state.begun:
                return None
            return RestartRecord(**common, round=round_, digest=newest.digest)

        found = log.append(wanted)
        return found if isinstance(found, RestartRecord) else None

    def cells(self) -> int | None:
        """Return how many cells the newest version has; None: there is none."""
        latest = self._runtime.reader.refresh().latest
        return None if latest is None else latest.cells

    def replay(self, begin: int | None = None) -> Iterator[Replayed]:
        """Make the outer steps of all rounds anew; see ``replay``."""
        runtime = self._runtime
        context = runtime.context()
        store, log = runtime.stores.store, self.log(whole=True)
        return replay(log, store, context.backend, context.geometry, self.load, self.digest, begin)

    def newest(self, model: Model) -> tuple[int, str]:
        """Return the number of the newest version, and its layout's id; the first one is made of a model, if need be.

        Raises:
            InvalidArgument: it would be float32.
            InvalidModel, StoreUnavailable: as ``Registry.push``.
        """
        around = self._runtime.dependencies
        while not (state := self._runtime.reader.refresh()).versions:
            check_rounded(self._runtime.options.push.dtype)
            began = around.monotonic()
            if not self._push(0, model):
                around.sleep(around.monotonic() - began)  # who took over needs about as long
        number = len(state.versions) - 1
        return number, state.version(number).layout

    def load(self, version: int, geometry: Geometry, numbers: Sequence[int]) -> Callable[[Group], Cells]:
        """Return what reads groups of a version.

        Raises:
            NotFound, CorruptObject, StoreUnavailable: as ``Registry.load``.
        """
        state = self._runtime.reader.refresh()
        context, entry = self._runtime.context(), state.version(version)
        return fetch_groups(context, geometry, numbers, state, entry).copy_of

    def digest(self, version: int) -> str | None:
        """Return the state digest of a version; None: it is not there yet."""
        try:
            return self._runtime.versions.one(version, None).digest
        except Gone:
            raise
        except NotFound:
            return None

    def wait(self, poll_s: float, timeout_s: float, sleep: Callable[[float], object]) -> None:
        """Wait until a record may follow in the run's log, as workers wait for versions."""
        self._runtime.versions.wait(self._runtime.reader.state, poll_s, timeout_s, sleep)

    def push(self, version: int, weights: OuterWeights) -> None:
        """Commit weights as a version, if it is the next one."""
        if len(self._runtime.reader.refresh().versions) != version:
            return
        tensors = Weights.empty(weights.geometry)
        for group in weights.geometry.groups:
            tensors.fill(group, weights.version_cells(group))
        layout = weights.geometry.layout
        model = {
            tensor.name: cells.view(numpy_dtype(tensor.dtype))
            for tensor, cells in zip(layout.tensors, tensors.arrays, strict=True)
        }
        model |= {alias: model[name] for alias, name in layout.tied.items()}
        self._push(version, model)

    def close(self) -> None:
        """End what pushes."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close(Closing(self._runtime.run, None))

    def _push(self, version: int, model: Model) -> bool:
        """Commit a model as the version of that number, if it is not there; false: another writer took over."""
        try:
            if self._publisher is None:
                self._publisher = self._runtime.outer_publisher()
            self._publisher.take_over(model)
            # No other has committed since this term began; or what is pushed finds it fenced.
            if len(self._runtime.reader.refresh().versions) == version:
                self._publisher.push(version, model, None, None).result()
        except Conflict:
            self.close()  # of an older term
            return False
        return True


def check_rounded(dtype: PublishDtype) -> None:
    """Check that the first version of a run, which is made of float32 masters, is a BF16 one, as rounds need it.

    Raises:
        InvalidArgument: it would be float32.
    """
    if dtype == "keep":
        raise InvalidArgument(
            "PushOptions(dtype='keep') would make the first version float32, and outer rounds are of BF16 versions: "
            "leave dtype out, or give dtype='bf16'"
        )
