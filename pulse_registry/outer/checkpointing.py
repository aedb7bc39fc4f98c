"""A member's share in the checkpoints of rounds: begins at one, writes one when it is its turn, compares all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pulse_kernels import Cells
from pulse_registry.errors import (
    BaseMismatch,
    CorruptObject,
    Diverged,
    NotFound,
    PulseError,
    StoreUnavailable,
    UnsupportedFormat,
)
from pulse_registry.outer.checkpoint_turn import SHARE, writer_of
from pulse_registry.outer.checkpoint_writer import CheckpointWriter
from pulse_registry.outer.checkpoints import Checkpoints, Sums
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.shared_log import SharedOuterLog
from pulse_registry.outer.state import ClosedRound, OuterState
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.peers.lone import LonePeers
from pulse_registry.peers.peers import Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest
from pulse_schemas.outer import CheckpointRecord

_logger = logging.getLogger(__name__)
_BAD = (NotFound, CorruptObject, BaseMismatch, UnsupportedFormat)


class Checkpointing:
    """Not thread-safe.

    Attributes:
        checkpoints: in the store.
        writer: of them; None: this member writes none.
    """

    def __init__(
        self,
        member: str,
        checkpoints: Checkpoints,
        writer: CheckpointWriter | None,
        load: Callable[[int], Callable[[Group], Cells]],
        peers: Peers | None = None,
        *,
        share: float = SHARE,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            member: whose share it is.
            checkpoints: in the store.
            writer: of them; None: this member writes none.
            load: returns what reads the groups of a version of the run that are kept here.
            peers: the ranks of the member, which make the same calls; one by default.
            share: see ``SHARE``; of all members the same.
        """
        self._member, self.checkpoints, self.writer, self._load = member, checkpoints, writer, load
        self._share, self._peers = share, LonePeers() if peers is None else peers
        self._mine: dict[int, Sums] = {}  # of the rounds that a checkpoint may come of
        self._compared = 0

    def begin(self, log: OuterLog | SharedOuterLog, weights: OuterWeights) -> int:
        """Bring weights to the newest checkpoint that can be read, or to the version that rounds began with.

        Args:
            log: that was read; it is folded whole where only older rounds lead to the newest one.
            weights: get theta and momentum; what was not sent stays.

        Returns:
            The round that they are of; the log's state keeps all later ones.

        Raises:
            NotFound, CorruptObject, BaseMismatch: nothing that can be read leads to the newest round.
            StoreUnavailable: call again.
        """
        while True:
            retired = log.state.retired
            try:
                return self._begin(log, weights)
            except _BAD:  # what was retired meanwhile may be deleted; newer checkpoints are there
                if log.refresh().retired == retired:
                    raise

    def _begin(self, log: OuterLog | SharedOuterLog, weights: OuterWeights) -> int:
        failed: PulseError | None = None
        for record in [*reversed(log.state.checkpoints), None]:
            number = log.state.begun if record is None else record.round
            if number < log.state.dropped:
                log.fold_whole()
            if number < log.state.dropped:
                break  # what leads on from there was retired
            try:
                self.begin_at(log.state, record, weights)
            except _BAD as error:
                _logger.warning("run %s: round %d can't be begun at: %s", log.state.run, number, error)
                failed = failed or error
            else:
                return number
        raise failed or NotFound(f"run {log.state.run!r}: nothing leads to its newest outer round")

    def begin_at(self, state: OuterState, record: CheckpointRecord | None, weights: OuterWeights) -> None:
        """Bring weights to a checkpoint; None: to the version that rounds began with, last of all.

        Raises:
            NotFound, CorruptObject, BaseMismatch, StoreUnavailable: it, or the version beside it, can't be read; the
                weights then hold nothing in particular.
        """
        if state.start is None:
            raise NotFound(f"run {state.run!r} has no outer rounds")
        number = state.start.version + (state.begun if record is None else record.round)
        version = self._load(number)
        if record is not None:
            self.checkpoints.read(record, weights, version)
            return
        weights.begin(version)
        if (found := weights.digest().hex()) != state.beginning.digest:
            raise CorruptObject(
                f"run {state.run!r}: its outer rounds began with weights of digest {state.beginning.digest}, and "
                f"version {number} has {found}"
            )

    def before_step(self) -> None:
        """Wait until nothing reads the state that the next outer step changes."""
        if self.writer is not None:
            self.writer.wait_coded()

    def stepped(self, state: OuterState, closed: ClosedRound, weights: OuterWeights) -> None:
        """Take note of the state after a round, and begin to write it if that is due, and this member's turn."""
        turn = writer_of(state, closed, weights.geometry.cells, self._share)
        newest = state.checkpoints[-1].round if state.checkpoints else 0
        wanted = turn is not None and closed.number > newest
        if wanted or any(one.round == closed.number for one in state.checkpoints):
            self._mine[closed.number] = {group.number: weights.sums(group) for group in weights.groups}
        if wanted and turn == self._member and self.writer is not None and not self.writer.busy:
            self.writer.begin(closed.number, weights.digest().hex(), weights)

    def settle(self, log: OuterLog | SharedOuterLog, round_: int, *, wait: bool = False) -> None:
        """Tell in the log of a checkpoint that is stored, and compare what others have told of.

        Args:
            log: to append to.
            round_: that this member has come to.
            wait: for the one that is under way.

        Raises:
            Diverged: a checkpoint is not what this member held after that round.
            StoreUnavailable: call again; a checkpoint that was stored may be lost, and another is when it is due.
        """
        written = None if self.writer is None else self.writer.take(wait=wait)
        if written is not None:

            def wanted(state: OuterState, common: dict[str, Any]) -> CheckpointRecord | None:
                record = CheckpointRecord(
                    **common,
                    round=written.round,
                    object=written.object,
                    parts=written.parts,
                    theta=written.theta,
                    momentum=written.momentum,
                )
                return None if state.void(record) else record

            log.append(wanted)
        for record in log.state.checkpoints:
            if self._compared < record.round <= round_:
                self._compare(record)
                self._compared = record.round
        self._mine = {number: sums for number, sums in self._mine.items() if number > self._compared}

    def close(self) -> None:
        """End what writes. Idempotent."""
        if self.writer is not None:
            self.writer.close()

    def _compare(self, record: CheckpointRecord) -> None:
        mine = self._mine.get(record.round)
        if mine is None:
            return
        shares = [sum((one[k] for one in mine.values()), Digest()) for k in (0, 1)]
        lanes = sum_lanes(self._peers, [lane for one in shares for lane in (one.lane_0, one.lane_1)], "checkpoint")
        if (Digest(*lanes[:2]).hex(), Digest(*lanes[2:]).hex()) == (record.theta, record.momentum):
            return
        try:
            found = self.checkpoints.differing(record, mine)
        except (*_BAD, StoreUnavailable) as error:
            found = f"which part of it, can't be told ({error})"
        every = self._peers.all_gather((found or "").encode(), "where")
        where = next((said.decode() for said in every if said), "weights that no round has touched")
        raise Diverged(
            f"round {record.round}: member {self._member!r} holds another state than the checkpoint that record "
            f"{record.seq} names: {where}. One of the two was changed by something else than these rounds, or computed "
            "wrongly. Begin again from the newest version"
        )
