"""Writer of checkpoints of outer rounds: codes the state to disk while the next inner steps run, then uploads it.

Until the state is coded it must not change; that is all that a round may have to wait for. Memory takes a group.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self, TypeVar

from blake3 import blake3

from pulse_kernels import Backend
from pulse_kernels.format.outer_state import encode_state
from pulse_kernels.select import exponent_loops
from pulse_registry.errors import InvalidModel, PulseError, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.format.directory import Directory, Entry
from pulse_registry.format.outer_checkpoint import checkpoint_head_bytes, group_entry
from pulse_registry.outer.log import FOLDER
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_registry.store import PrefixStore, Store, create
from pulse_registry.weights.digest import Digest
from pulse_schemas import ObjectRef

_logger = logging.getLogger(__name__)
_HEX: Final = 32
"""Digits of a digest."""
_YES, _NO = b"+", b"-"
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """What a record says of a checkpoint that lies in the store."""

    round: int
    object: ObjectRef
    parts: int
    theta: str
    momentum: str

    def to_bytes(self) -> bytes:
        """Return it as ranks send it."""
        said = self.round, self.parts, self.theta, self.momentum
        return b"\n".join([*(str(one).encode() for one in said), self.object.canonical()])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what ``to_bytes`` of a rank has returned."""
        *said, stored = data.split(b"\n")
        round_, parts, theta, momentum = (one.decode() for one in said)
        return cls(int(round_), ObjectRef.parse(stored), int(parts), theta, momentum)


class CheckpointWriter:
    """Writes one checkpoint at a time. For one thread; the state is read by another."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        threads: Callable[[int, str], Executor],
        new_id: Callable[[], str],
        folder: Path | None = None,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            store: scoped to the run.
            backend: computes.
            threads: makes an executor, of so many threads and their name's beginning.
            new_id: gives write ids.
            folder: where the coded state lies while it is uploaded; None for the usual one.
        """
        self._store, self._loops = PrefixStore(store, FOLDER), exponent_loops(backend.name)
        self._threads, self._new_id, self._folder = threads, new_id, folder
        self._pool: Executor | None = None
        self._coded = threading.Event()
        self._coded.set()
        self._under_way: _UnderWay | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is under way, or waits to be taken; the same on all ranks."""
        return self._under_way is not None

    def begin(self, round_: int, base: str, weights: OuterWeights) -> None:
        """Write the state after a round; until ``wait_coded`` has returned, the weights must stay as they are.

        Each rank of a sharded model writes the groups that it keeps; all of them call.

        Args:
            round_: that it is of.
            base: digest of its version.
            weights: whose theta and momentum are written.
        """
        if self._pool is None:
            self._pool = self._threads(1, "pulse-outer-checkpoint")
        self._coded.clear()
        try:
            key = keys.checkpoint_head_key(round_, self._new_id())
            groups = self._pool.submit(self._write, key, weights)
            self._under_way = _UnderWay(round_, base, key, weights, groups)
        except BaseException:
            self._coded.set()
            raise

    def wait_coded(self) -> None:
        """Wait until nothing reads the state any more."""
        self._coded.wait()

    def take(self, *, wait: bool = False) -> WrittenCheckpoint | None:
        """Store the head of a checkpoint whose groups all ranks have stored, and return it, once; a collective.

        None: there is none, it is not ready yet, or it failed on a rank, which is logged there.
        """
        under_way = self._under_way
        if under_way is None:
            return None
        peers, groups = under_way.weights.peers, under_way.groups
        ready = peers.all_gather(_YES if wait or groups.done() else _NO, "checkpoint")
        if not all(one == _YES for one in ready):
            return None
        self._under_way = None
        mine = _result(groups.result)
        every = peers.gather(b"" if mine is None else mine.to_bytes(), "groups of the checkpoint")
        head = None
        if every is not None and all(every):
            head = _result(lambda: self._finished(under_way, [_Groups.from_bytes(under_way.key, one) for one in every]))
        said = peers.broadcast(b"" if head is None else head.to_bytes(), "checkpoint's head")
        return WrittenCheckpoint.from_bytes(said) if said else None

    def close(self) -> None:
        """End the thread, once what it is at is done. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def _write(self, key: str, weights: OuterWeights) -> _Groups:
        """Code and store the groups that are kept here."""
        where = self._folder or temporary_folder()
        try:
            with tempfile.TemporaryFile(dir=where) as file:
                groups = self._code(weights, file)
                self._coded.set()
                file.seek(0)
                for entry in groups.entries.values():
                    create(self._store, keys.checkpoint_group_key(key, entry.group), file.read(entry.size))
                return groups
        except OSError as error:
            raise StoreUnavailable(f"a checkpoint can't be kept in {where}: {error.strerror}") from error
        finally:
            self._coded.set()

    def _code(self, weights: OuterWeights, file: IO[bytes]) -> _Groups:
        """Write down the groups that were touched, and return what is said of them, and the sums of all."""
        entries, totals = list[Entry](), (Digest(), Digest())
        for group in weights.groups:
            theta, momentum = weights.patterns(group)
            try:
                data, touched = encode_state(self._loops, weights.version_cells(group), theta, momentum)
            except ValueError as error:
                raise InvalidModel(f"group {group.number} of the outer state: {error}") from error
            sums = weights.sums(group)
            totals = (totals[0] + sums[0], totals[1] + sums[1])
            if touched:
                file.write(data)
                entries.append(group_entry(group.number, touched, data, *sums))
        return _Groups(Directory.of(entries), *totals)

    def _finished(self, under_way: _UnderWay, every: Sequence[_Groups]) -> WrittenCheckpoint:
        """Put the head, after all groups."""
        key = under_way.key
        entries = Directory.joined(key, (one.entries.to_bytes() for one in every))
        theta, momentum = (sum((getattr(one, what) for one in every), Digest()) for what in ("theta", "momentum"))
        head = checkpoint_head_bytes(
            under_way.weights.geometry.id, under_way.base, under_way.round, list(entries.values())
        )
        create(self._store, key, head)
        stored = ObjectRef(key=key, size=len(head), blake3=blake3(head).hexdigest())
        return WrittenCheckpoint(under_way.round, stored, int(entries.sizes.sum()), theta.hex(), momentum.hex())


@dataclass(frozen=True, slots=True)
class _Groups:
    """What is said of the groups that one rank has stored, and the sums of all that it keeps."""

    entries: Directory
    theta: Digest
    momentum: Digest

    def to_bytes(self) -> bytes:
        """Return it as ranks send it."""
        return self.theta.hex().encode() + self.momentum.hex().encode() + self.entries.to_bytes()

    @classmethod
    def from_bytes(cls, key: str, data: bytes) -> Self:
        """Read what ``to_bytes`` of a rank has returned."""
        theta, momentum = data[:_HEX].decode(), data[_HEX : 2 * _HEX].decode()
        return cls(Directory.parse(key, data[2 * _HEX :]), Digest.parse(theta), Digest.parse(momentum))


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A checkpoint whose groups are being stored."""

    round: int
    base: str
    key: str
    weights: OuterWeights
    groups: Future[_Groups]


def _result(find: Callable[[], Result]) -> Result | None:
    """Return what is found; None where that fails, which is logged: another one is written when it is due."""
    try:
        return find()
    except (PulseError, OSError) as error:
        _logger.warning("no checkpoint of outer rounds was written, and another is when it is due: %s", error)
        return None
