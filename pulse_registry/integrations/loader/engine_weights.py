"""Engine weights: the live parameters of an engine's model, which follow a run while the engine serves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from pulse_registry.errors import BaseMismatch, InvalidArgument, LayoutMismatch
from pulse_registry.integrations.loader.live import LiveMap, live_map
from pulse_registry.peers import Attempt, Peers
from pulse_registry.pull.apply import Staged
from pulse_registry.pull.together import Together
from pulse_registry.registry import Registry
from pulse_registry.results import PullResult, VersionName
from pulse_registry.weights.slice import Slice

Result = TypeVar("Result")


class EngineWeights:
    """Holds one version in a model's live parameters, and stages another one beside it. Thread-safe.

    ``stage`` begins in a thread, and the engine goes on; ``apply`` is the pause. Where several ranks hold the model,
    all make the same calls, in the same order; all change or none, and what one of them raises, all raise.

    Attributes:
        registry: the run that they follow.
        version: that they hold.
    """

    def __init__(
        self,
        open_run: Callable[[], Registry],
        model: torch.nn.Module,
        version: VersionName,
        peers: Peers | None = None,
    ) -> None:
        """Find the live cells of a version that the engine was loaded from, and compare them all, bit by bit.

        Args:
            open_run: opens the registry, of several ranks with their process group.
            model: whose ``load_weights`` tells where cells live.
            version: what the parameters hold now; of several ranks, what it means to the first.
            peers: the ranks that hold the model, for these weights alone; None: it is on one.

        Raises:
            LayoutMismatch: some tensors can't be written in place; named, with the reason.
            BaseMismatch: the live cells are not the version's: it is another one, or the engine has packed or quantised
                the tensors that are named.
            PulseError: the run can't be opened, or read.
        """
        self._peers = peers
        self._model = model
        self._lock = threading.Lock()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "pulse-stage")
        self._staging: Future[Staged] | None = None
        self._applied: tuple[Staged, int] | None = None  # and the version before it
        opened = list[Registry]()
        try:
            self._agreed(lambda: opened.append(open_run()), "open")
            [self.registry] = opened
            self.version = self._number(version)
            self._slices = self._agreed(self._find, "find")
            self._agreed(self._compare, "compare")
            self._storages = {tensor.untyped_storage().data_ptr() for tensor in _tensors(self._slices.values())}
            self._addresses = dict(self._live())
        except BaseException:
            self._end(opened)
            raise

    def stage(self, version: VersionName = "latest") -> None:
        """Begin to fetch, check and decode a version, in a thread; what was staged before is given back.

        Raises:
            InvalidArgument: it was closed.
        """
        with self._lock:
            self._check_open()
            self._drop()
            self._staging = self._thread.submit(self._stage, version)

    @property
    def ready(self) -> bool:
        """Whether ``apply`` would not wait for what is staged on this rank.

        Raises:
            PulseError: what went wrong while it was staged, as ``apply`` would: nobody needs to pause for that.
        """
        with self._lock:
            if self._staging is None or not self._staging.done():
                return False
            self._staging.result()
            return True

    def apply(self, version: VersionName = "latest") -> PullResult:
        """Wait for what was staged, and change the live weights to it; addresses do not move.

        Args:
            version: a number, to change to this one or to none; a name is what it meant when it was staged.

        Raises:
            InvalidArgument: nothing was staged, or another version; or a parameter has moved, so that what reads it
                would not see a change.
            PulseError: what went wrong while it was staged. The weights are what they were.
        """
        with self._lock:
            self._check_open()
            staging, self._staging = self._staging, None
            if staging is None:
                raise InvalidArgument("nothing is staged: call stage() first")
            staged = staging.result()
            try:
                if isinstance(version, int) and staged.version != version:
                    raise InvalidArgument(f"version {staged.version} is staged, and not {version}: stage that first")
                self._agreed(self._check_addresses, "addresses")
                result = staged.apply()
            except BaseException:
                staged.discard()
                raise
            self._keep((staged, self.version))
            self.version = result.version
            return result

    def undo(self) -> int:
        """Take the last ``apply`` back, and return the version that the weights hold then.

        What was staged on top of it has to be staged again.

        Raises:
            InvalidArgument: there is none to take back, or it replaced all cells.
        """
        with self._lock:
            self._check_open()
            if self._applied is None:
                raise InvalidArgument("nothing was applied that could be taken back")
            self._settle()
            staged, before = self._applied
            staged.undo()
            self.version = before
            return before

    def verify(self) -> int:
        """Compare all live cells with the version that they hold, and return its number.

        Raises:
            BaseMismatch: they differ; names the tensors.
        """
        with self._lock:
            self._check_open()
            self._settle()
            return self._agreed(
                lambda: self.registry.verify(self.version, model=self._slices, partial=True).version, "verify"
            )

    def close(self) -> None:
        """Give back what is staged, and close the registry. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop()
            self._keep(None)
            self._end([self.registry])

    def _number(self, version: VersionName) -> int:
        """Return the number of a version, on all ranks that which its name has on the first."""

        def number() -> int:
            return self.registry.version(version).version

        return number() if self._peers is None else Together(self._peers).same_version(number)

    def _find(self) -> Mapping[str, Slice | list[Slice]]:
        """Return the live cells as slices."""
        self._layout = self.registry.layout(self.version)
        live = live_map(self._model, self._layout)
        if live.refused:
            raise _refused(live)
        return live.slices

    def _compare(self) -> None:
        """Compare all live cells with the version; with a host copy, all ranks together."""
        try:
            self.registry.verify(self.version, model=self._slices, partial=True)
        except BaseMismatch as error:
            raise BaseMismatch(
                f"{error}. Name the version that the engine was loaded from; if it is this one, the engine keeps these "
                "tensors in another form (packed or quantised)",
                error.tensors,
            ) from None

    def _stage(self, version: VersionName) -> Staged:
        staged = self.registry.stage(version, into=self._slices, partial=True)
        try:
            self._agreed(lambda: self._check_layout(staged.version), "layout")
        except BaseException:
            staged.discard()
            raise
        return staged

    def _check_layout(self, version: int) -> None:
        """Slices are part of a version: that it has more tensors than the engine, only its layout tells."""
        if self.registry.layout(version) != self._layout:
            raise LayoutMismatch(
                f"version {version} has other tensors than version {self.version}, which the engine was loaded for: "
                "load it anew, from a checkpoint of that version"
            )

    def _agreed(self, work: Callable[[], Result], what: str) -> Result:
        """Do a rank's work, in which no rank waits for another; where it fails on one, its error is raised on all."""
        if self._peers is None:
            return work()
        attempt, nothing = Attempt(self._peers), list[Result]()
        made = attempt.run(lambda: [work()], nothing)
        attempt.agree(what)
        return made[0]

    def _settle(self) -> None:
        """Wait for stagings under way: the ranks talk in their thread, and must not talk in two at once."""
        if self._staging is not None:
            wait([self._staging])

    def _drop(self) -> None:
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.add_done_callback(_discard)

    def _keep(self, applied: tuple[Staged, int] | None) -> None:
        """Keep what was applied, to take it back; give back what was kept before."""
        last, self._applied = self._applied, applied
        if last is not None:
            last[0].discard()

    def _end(self, opened: list[Registry]) -> None:
        self._thread.shutdown()
        for registry in opened:
            registry.close()
        if self._peers is not None:
            self._peers.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the run was closed; open it again")

    def _live(self) -> Iterator[tuple[str, int]]:
        """Yield the parameters and buffers in which live cells are, with their addresses."""
        for held in (self._model.named_parameters(), self._model.named_buffers()):
            for name, tensor in held:
                if tensor.untyped_storage().data_ptr() in self._storages:
                    yield name, tensor.data_ptr()

    def _check_addresses(self) -> None:
        now = dict(self._live())
        for name, address in self._addresses.items():
            if now.get(name) != address:
                raise InvalidArgument(
                    f"parameter {name} is not where it was when its cells were found: it was replaced. Open the run "
                    "for this model again; nothing was changed"
                )


def _tensors(slices: Iterable[Slice | list[Slice]]) -> Iterator[torch.Tensor]:
    for held in slices:
        for one in held if isinstance(held, list) else [held]:
            if isinstance(one.tensor, torch.Tensor):
                yield one.tensor


def _refused(live: LiveMap) -> LayoutMismatch:
    name, why = next(iter(live.refused.items()))
    more = f", and {len(live.refused) - 1} more" if len(live.refused) > 1 else ""
    return LayoutMismatch(f"tensor {name!r} can't be changed in place: {why}{more}")


def _discard(staging: Future[Staged]) -> None:
    if staging.exception() is None:
        staging.result().discard()
