"""Replay of outer rounds: what members have computed, computed again from what is stored, and compared.

No model is needed, and no GPU: the weights of the version that the rounds began with, and the contributions to each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pulse_kernels import Backend, Cells
from pulse_kernels.select import outer_loops
from pulse_registry.errors import BaseMismatch, CorruptObject, Gone, NotFound, PulseError
from pulse_registry.outer.checkpointing import Checkpointing
from pulse_registry.outer.checkpoints import Checkpoints
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.member import Member
from pulse_registry.outer.state import OuterState
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.store import Store
from pulse_registry.weights.cell_space import Geometry, Group


@dataclass(frozen=True, slots=True)
class Replayed:
    """A round whose outer step was made again.

    Attributes:
        round, version: its number, and that of the version that it made.
        contributions: that it is of.
        digest: of the weights after it, as BF16.
        committed: that of the version; None: it was retired, or nobody has pushed it yet.
    """

    round: int
    version: int
    contributions: int
    digest: str
    committed: str | None

    @property
    def differs(self) -> bool:
        """Whether the version is not what the round came to."""
        return self.committed is not None and self.committed != self.digest


def replay(
    log: OuterLog,
    store: Store,
    backend: Backend,
    geometry: Callable[[str], Geometry],
    load: Callable[[int, Geometry, Sequence[int]], Callable[[Group], Cells]],
    committed: Callable[[int], str | None],
) -> Iterator[Replayed]:
    """Make the outer steps of all rounds that have ended, and yield each with its version's digest.

    Where what leads to the first rounds was retired, it begins at the oldest checkpoint that can be read; later ones
    are compared.

    Args:
        log: of the run's outer rounds, that keeps all rounds; it is read on.
        store: scoped to the run.
        backend: computes.
        geometry: returns that of a layout that the run has.
        load: returns what reads the groups of a version, by their numbers.
        committed: returns the state digest of a version; None: it is not there.

    Raises:
        NotFound: there are no outer rounds; or what the first of them need was retired, and no checkpoint can be read.
        Diverged: a checkpoint is not what the rounds came to.
        CorruptObject: the version that the rounds began with is another one, or a contribution is damaged.
        BaseMismatch: a contribution was made from other weights.
        UnsupportedFormat, Untrusted, StoreUnavailable: as ``OuterLog.refresh``.
    """
    state = log.refresh()
    start = state.start
    if start is None:
        raise NotFound(f"run {state.run!r} has no outer rounds")
    cells = geometry(start.layout)
    weights = OuterWeights(cells, backend, outer_loops(backend.name))
    checkpointing = Checkpointing(
        "replay",
        Checkpoints(store, cells, backend),
        None,
        lambda version: load(version, cells, range(len(cells.groups))),
    )
    member = Member(
        "replay",
        log,
        Contributions(store, cells, backend),
        weights,
        grace_s=float("inf"),
        checkpointing=checkpointing,
    )
    member.round = _begun(state, checkpointing, weights)
    member.digest = weights.digest().hex()
    if not member.round and member.digest != start.digest:
        raise CorruptObject(
            f"run {state.run!r}: its outer rounds began with weights of digest {start.digest}, and version "
            f"{start.version} has {member.digest}"
        )
    while done := member.catch_up(member.round + 1):
        number = start.version + done[0].number
        try:
            digest = committed(number)
        except Gone:
            digest = None
        yield Replayed(done[0].number, number, len(done[0].contributions), weights.digest().hex(), digest)


def _begun(state: OuterState, checkpointing: Checkpointing, weights: OuterWeights) -> int:
    """Bring weights to where the rounds begin that can be made again, and return after which round that is."""
    if not state.retired:
        checkpointing.begin_at(state, None, weights)
        return 0
    failed: PulseError | None = None
    for record in state.checkpoints:
        try:
            checkpointing.begin_at(state, record, weights)
        except (NotFound, CorruptObject, BaseMismatch) as error:
            failed = failed or error
        else:
            return record.round
    raise failed or NotFound(f"what leads to round {state.retired} of run {state.run!r} was retired")
