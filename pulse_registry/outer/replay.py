"""Replay of outer rounds: what members have computed, computed again from what is stored, and compared.

No model is needed, and no GPU: the weights of the version that the rounds began with, and the contributions to each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pulse_kernels import Backend, Cells
from pulse_kernels.select import outer_loops
from pulse_registry.errors import CorruptObject, Gone, NotFound
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.member import Member
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

    Args:
        log: of the run's outer rounds, that keeps all rounds; it is read on.
        store: scoped to the run.
        backend: computes.
        geometry: returns that of a layout that the run has.
        load: returns what reads the groups of a version, by their numbers.
        committed: returns the state digest of a version; None: it is not there.

    Raises:
        NotFound: there are no outer rounds; or what the first of them need was retired.
        CorruptObject: the version that the rounds began with is another one, or a contribution is damaged.
        BaseMismatch: a contribution was made from other weights.
        UnsupportedFormat, Untrusted, StoreUnavailable: as ``OuterLog.refresh``.
    """
    state = log.refresh()
    start = state.start
    if start is None:
        raise NotFound(f"run {state.run!r} has no outer rounds")
    if state.retired:
        raise NotFound(f"what leads to round {state.retired} of run {state.run!r} was retired: it can't be replayed")
    cells = geometry(start.layout)
    weights = OuterWeights(cells, backend, outer_loops(backend.name))
    weights.begin(load(start.version, cells, range(len(cells.groups))))
    if (found := weights.digest().hex()) != start.digest:
        raise CorruptObject(
            f"run {state.run!r}: its outer rounds began with weights of digest {start.digest}, and version "
            f"{start.version} has {found}"
        )
    member = Member("replay", log, Contributions(store, cells, backend), weights, grace_s=float("inf"))
    member.digest = found
    while done := member.catch_up(member.round + 1):
        number = start.version + done[0].number
        try:
            digest = committed(number)
        except Gone:
            digest = None
        yield Replayed(done[0].number, number, len(done[0].contributions), weights.digest().hex(), digest)
