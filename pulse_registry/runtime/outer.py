"""A run as outer rounds need it: its versions, loaded, compared and pushed; its writer's term taken over and over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pulse_kernels import Cells
from pulse_registry.errors import Conflict, Gone, InvalidArgument, NotFound
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.replay import Replayed, replay
from pulse_registry.outer.run import Run
from pulse_registry.outer.session import OuterSession
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.process.closing import Closing
from pulse_registry.push.publisher import Publisher
from pulse_registry.push.whole_groups import fetch_groups
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.dtypes import numpy_dtype
from pulse_registry.weights.model import Model, PublishDtype


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
