"""Replay of outer rounds: what members have computed, computed again from what is stored, and compared.

No model is needed, and no GPU: the weights of the version that the rounds began with, and the contributions to each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pulse_kernels import Backend, Cells
from pulse_kernels.protocol import OuterLoops
from pulse_kernels.select import outer_loops
from pulse_registry.errors import BaseMismatch, CorruptObject, Gone, NotFound, PulseError
from pulse_registry.outer.checkpointing import Checkpointing
from pulse_registry.outer.checkpoints import Checkpoints
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.mean import GroupLevels, added_up
from pulse_registry.outer.member import Member
from pulse_registry.outer.round_parts import contributed
from pulse_registry.outer.state import ClosedRound, OuterState
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.store import Store
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_schemas.outer import MergedRecord, StartRecord


@dataclass(frozen=True, slots=True)
class Replayed:
    """A round whose outer step was made again.

    Attributes:
        round, version: its number, and that of the version that it made.
        contributions: that it is of.
        digest: of the weights after it, as BF16.
        committed: that of the version; None: it was retired, or nobody has pushed it yet.
        checkpoint: whether the round's checkpoint tells of the same weights and momentum; None: there is none.
        merged: whether the round's merged contribution holds the same totals; None: there is none.
    """

    round: int
    version: int
    contributions: int
    digest: str
    committed: str | None
    checkpoint: bool | None = None
    merged: bool | None = None

    @property
    def differs(self) -> bool:
        """Whether the version, the checkpoint or the merged contribution is not what the round came to."""
        return False in (self.checkpoint, self.merged) or self.committed not in (None, self.digest)


def replay(
    log: OuterLog,
    store: Store,
    backend: Backend,
    geometry: Callable[[str], Geometry],
    load: Callable[[int, Geometry, Sequence[int]], Callable[[Group], Cells]],
    committed: Callable[[int], str | None],
    begin: int | None = None,
) -> Iterator[Replayed]:
    """Make the outer steps of all rounds that have ended, and yield each with its version's digest.

    What members have sent is fetched, and never what others have added up. Where a checkpoint is of a round, or its
    contributions were merged, these are compared, too.

    Args:
        log: of the run's outer rounds, that keeps all rounds; it is read on.
        store: scoped to the run.
        backend: computes.
        geometry: returns that of a layout that the run has.
        load: returns what reads the groups of a version, by their numbers.
        committed: returns the state digest of a version; None: it is not there.
        begin: at the checkpoint of this round, or at that after which rounds began, 0 unless they began anew; None: at
            the beginning, or, where that was retired, at the oldest checkpoint that can be read.

    Raises:
        NotFound: there are no outer rounds, or no such checkpoint; or what the first of them need was retired.
        CorruptObject: the version that the rounds began with is another one, or a contribution is damaged.
        BaseMismatch: a contribution was made from other weights.
        UnsupportedFormat, Untrusted, StoreUnavailable: as ``OuterLog.refresh``.
    """
    state = log.refresh()
    start = state.start
    if start is None:
        raise NotFound(f"run {state.run!r} has no outer rounds")
    cells = geometry(start.layout)
    loops = outer_loops(backend.name)
    weights = OuterWeights(cells, backend, loops)
    checkpoints = Checkpoints(store, cells, backend)
    checkpointing = Checkpointing(
        "replay", checkpoints, None, lambda version: load(version, cells, range(len(cells.groups)))
    )
    contributions = Contributions(store, cells, backend)
    member = Member("replay", log, contributions, weights, grace_s=float("inf"))
    member.round = _begun(state, begin, checkpointing, weights)
    member.digest = weights.digest().hex()
    told = {one.round: (one.theta, one.momentum) for one in state.checkpoints}
    merged, state.merged = state.merged, {}
    while (closed := state.ended(member.round + 1)) is not None:
        round_ = closed.number
        same = None
        if round_ in merged:
            same = _merged_alike(contributions, weights, loops, closed, start, merged[round_])
        member.catch_up(round_)
        try:
            digest = committed(start.version + round_)
        except Gone:
            digest = None
        alike = None if round_ not in told else told[round_] == _sums(weights)
        count, version = len(closed.contributions), start.version + round_
        yield Replayed(round_, version, count, weights.digest().hex(), digest, alike, same)


def _begun(state: OuterState, begin: int | None, checkpointing: Checkpointing, weights: OuterWeights) -> int:
    """Bring weights to where the replay begins, and return after which round that is."""
    if begin == state.begun or (begin is None and state.retired == state.begun):
        if state.retired > state.begun:
            raise NotFound(f"what leads to round {state.retired} of run {state.run!r} was retired: begin there")
        checkpointing.begin_at(state, None, weights)
        return state.begun
    if begin is not None and all(one.round != begin for one in state.checkpoints):
        there = ", ".join(str(one.round) for one in state.checkpoints) or "none"
        raise NotFound(f"run {state.run!r} has no checkpoint of round {begin}: those that it has are of {there}")
    failed: PulseError | None = None
    for record in state.checkpoints:
        if begin in (None, record.round):
            try:
                checkpointing.begin_at(state, record, weights)
            except (NotFound, CorruptObject, BaseMismatch) as error:
                failed = failed or error
            else:
                return record.round
    raise failed or NotFound(f"what leads to round {state.retired} of run {state.run!r} was retired")


def _merged_alike(
    contributions: Contributions,
    weights: OuterWeights,
    loops: OuterLoops,
    closed: ClosedRound,
    start: StartRecord,
    record: MergedRecord,
) -> bool:
    """Tell whether the contributions to the round that begins with these weights add up to what was merged."""
    parts, exponent = contributed(contributions, weights, closed, start)
    totals = contributions.get_merged(weights, record)
    if record.exponent != exponent or not totals.keys() <= parts.keys():
        return False
    for number, sent in parts.items():
        levels = [part for part in sent if isinstance(part, GroupLevels)]
        index, found = added_up(loops, weights.geometry.groups[number].cells, levels, exponent)
        told = totals.get(number)
        if len(index) != (0 if told is None else len(told.index)):
            return False
        if told is not None and not (np.array_equal(told.index, index) and np.array_equal(told.totals, found)):
            return False
    return True


def _sums(weights: OuterWeights) -> tuple[str, str]:
    """Return the state digests of theta and of momentum."""
    shares = [weights.sums(group) for group in weights.groups]
    theta, momentum = (sum(column, Digest()) for column in zip(*shares, strict=True))
    return theta.hex(), momentum.hex()
