"""The versions of a run whose members are sharded models: the ranks of each load, compare and push them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pulse_kernels import Cells
from pulse_registry.errors import Conflict, Gone, NotFound
from pulse_registry.outer.masters import Take
from pulse_registry.outer.options import OuterOptions
from pulse_registry.outer.run import Run
from pulse_registry.outer.session import OuterSession
from pulse_registry.outer.sharded_masters import ShardedMasters
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.process.closing import Closing
from pulse_registry.pull.sliced_cells import SlicedCells
from pulse_registry.push.sharded import ShardedPublisher
from pulse_registry.push.whole_groups import fetch_groups
from pulse_registry.runtime.outer import OuterRun, check_rounded
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.dtypes import numpy_dtype
from pulse_registry.weights.model import Model
from pulse_registry.weights.slice import Slice


class ShardedOuterRun:
    """The versions of a run, as the ranks of one member see them; see ``OuterRun``. Each method is a collective."""

    def __init__(self, runtime: Runtime, peers: Peers, pushing: Peers) -> None:
        """Take the ranks twice: those that call, and the same for pushes, which talk in a thread of their own."""
        self._runtime, self._peers, self._pushing = runtime, peers, pushing
        self._publisher: ShardedPublisher | None = None

    def session(self, model: Model, options: OuterOptions) -> OuterSession:
        """Return a session of this rank's part of a model."""
        runtime, around, context = self._runtime, self._runtime.dependencies, self._runtime.context()
        runtime.stores.write_at_home()
        run = Run(
            runtime.run,
            runtime.stores.store,
            context.backend,
            self,
            self.newest,
            self.geometry,
            self.load,
            self._masters,
            self._peers,
            threads=around.threads,
            spool=context.spool,
            signer=runtime.signer(),
            guard=runtime.outer_guard(),
            events=runtime.events,
            wait=self.wait,
            clock=around.clock,
            new_id=around.new_id,
        )
        return OuterSession(run, model, options, clock=around.monotonic, sleep=around.sleep)

    def newest(self, model: Model) -> tuple[int, str]:
        """Return the number of the newest version, and its layout's id; the first one is made of a model, if need be.

        Raises:
            InvalidArgument: it would be float32.
            InvalidModel, StoreUnavailable: as ``Registry.push``.
        """
        while not (count := self._count()):
            check_rounded(self._runtime.options.push.dtype)
            self._push(0, model)
        return count - 1, self._said(lambda: self._runtime.reader.state.version(count - 1).layout)

    def geometry(self, layout: str) -> Geometry:
        """Return the geometry of a layout that the run has."""
        attempt = Attempt(self._peers)
        found = attempt.run(lambda: [self._runtime.context().geometry(layout)], list[Geometry]())
        attempt.agree("layout")
        return found[0]

    def load(self, version: int, geometry: Geometry, numbers: Sequence[int]) -> Callable[[Group], Cells]:
        """Return what reads groups of a version, of which each rank fetches its own.

        Raises:
            NotFound, CorruptObject, StoreUnavailable: as ``Registry.pull``.
        """
        runtime = self._runtime

        def fetch() -> SlicedCells:
            state = runtime.reader.refresh()
            return fetch_groups(runtime.context(), geometry, numbers, state, state.version(version))

        attempt = Attempt(self._peers)
        found = attempt.run(lambda: [fetch()], list[SlicedCells]())
        attempt.agree("groups of a version")
        return found[0].copy_of

    def wait(self, poll_s: float, timeout_s: float, sleep: Callable[[float], object]) -> None:
        """Wait for what others commit, at the coordinator: the other ranks wait for it; see ``OuterRun.wait``."""
        attempt = Attempt(self._peers)
        if self._peers.rank == COORDINATOR:
            attempt.run(partial(OuterRun(self._runtime).wait, poll_s, timeout_s, sleep), None)
        attempt.agree("wait")

    def digest(self, version: int) -> str | None:
        """Return the state digest of a version; None: it is not there yet."""

        def found() -> str:
            try:
                return self._runtime.versions.one(version, None).digest
            except Gone:
                raise
            except NotFound:
                return ""

        return self._said(found) or None

    def push(self, version: int, weights: OuterWeights) -> None:
        """Commit weights as a version, if it is the next one; each rank pushes the groups that it keeps."""
        if self._count() != version:
            return
        layout, model = weights.geometry.layout, dict[str, Any]()
        for group in weights.groups:
            cells, done = weights.version_cells(group), 0
            for span in group.spans:
                tensor, size = layout.tensors[span.tensor], span.stop - span.start
                run = cells[done : done + size].view(numpy_dtype(tensor.dtype))
                model.setdefault(tensor.name, []).append(Slice(run, of=tensor.shape, at=span.start))
                done += size
        for tensor, count in zip(layout.tensors, weights.geometry.sizes, strict=True):
            if tensor.name not in model and (not count or not weights.groups):  # of no group; or this rank has none
                model[tensor.name] = Slice(np.empty(0, numpy_dtype(tensor.dtype)), of=tensor.shape, at=0)
        model |= {alias: model[name] for alias, name in layout.tied.items() if name in model}
        self._push(version, model)

    def close(self) -> None:
        """End what pushes."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close(Closing(self._runtime.run, None))

    def _masters(self, geometry: Geometry) -> Take:
        context = self._runtime.context()
        return ShardedMasters(self._peers, geometry, context.backend, context.map_).take

    def _push(self, version: int, model: Mapping[str, Any] | Model) -> None:
        """Commit a model as the version of that number, if it is not there, and nobody takes over."""
        try:
            if self._publisher is None:
                self._publisher = self._runtime.sharded_outer_publisher(self._pushing)
            self._publisher.take_over(model)
            if self._count() == version:
                self._publisher.push(version, model, None, None).result()
        except Conflict:
            self.close()  # of an older term

    def _count(self) -> int:
        """Return how many versions the run has."""
        return int(self._said(lambda: str(len(self._runtime.reader.refresh().versions))))

    def _said(self, find: Callable[[], str]) -> str:
        """Return on all ranks what the coordinator finds."""
        attempt, here = Attempt(self._peers), self._peers.rank == COORDINATOR
        found = attempt.run(find, "") if here else ""
        said = self._peers.broadcast(found.encode() if here else None, "versions")
        attempt.agree("versions")
        return said.decode()
