"""Writer of checkpoints of outer rounds: codes the state to disk while the next inner steps run, then uploads it.

Until the state is coded it must not change; that is all that a round may have to wait for. Memory takes a group.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from blake3 import blake3

from pulse_kernels import Backend
from pulse_kernels.format.outer_state import encode_state
from pulse_kernels.select import exponent_loops
from pulse_registry.errors import InvalidModel, PulseError, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.format.directory import Entry
from pulse_registry.format.outer_checkpoint import checkpoint_head_bytes, group_entry
from pulse_registry.outer.log import FOLDER
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_registry.store import PrefixStore, Store, create
from pulse_registry.weights.digest import Digest
from pulse_schemas import ObjectRef

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """What a record says of a checkpoint that lies in the store."""

    round: int
    object: ObjectRef
    parts: int
    theta: str
    momentum: str


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
        self._written: Future[WrittenCheckpoint] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is under way, or waits to be taken."""
        return self._written is not None

    def begin(self, round_: int, base: str, weights: OuterWeights) -> None:
        """Write the state after a round; until ``wait_coded`` has returned, the weights must stay as they are.

        Args:
            round_: that it is of.
            base: digest of its version.
            weights: whose theta and momentum are written.
        """
        if self._pool is None:
            self._pool = self._threads(1, "pulse-outer-checkpoint")
        self._coded.clear()
        try:
            self._written = self._pool.submit(self._write, round_, base, weights)
        except BaseException:
            self._coded.set()
            raise

    def wait_coded(self) -> None:
        """Wait until nothing reads the state any more."""
        self._coded.wait()

    def take(self, *, wait: bool = False) -> WrittenCheckpoint | None:
        """Return the checkpoint that is stored now, once; None if there is none, or it failed, which is logged."""
        future = self._written
        if future is None or not (wait or future.done()):
            return None
        self._written = None
        try:
            return future.result()
        except (PulseError, OSError) as error:
            _logger.warning("no checkpoint of outer rounds was written, and another is when it is due: %s", error)
            return None

    def close(self) -> None:
        """End the thread, once what it is at is done. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def _write(self, round_: int, base: str, weights: OuterWeights) -> WrittenCheckpoint:
        where = self._folder or temporary_folder()
        try:
            with tempfile.TemporaryFile(dir=where) as file:
                entries, theta, momentum = self._code(weights, file)
                self._coded.set()
                file.seek(0)
                return self._upload(round_, base, weights, entries, file, theta, momentum)
        except OSError as error:
            raise StoreUnavailable(f"a checkpoint can't be kept in {where}: {error.strerror}") from error
        finally:
            self._coded.set()

    def _code(self, weights: OuterWeights, file: IO[bytes]) -> tuple[list[Entry], Digest, Digest]:
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
        return entries, *totals

    def _upload(
        self,
        round_: int,
        base: str,
        weights: OuterWeights,
        entries: list[Entry],
        file: IO[bytes],
        theta: Digest,
        momentum: Digest,
    ) -> WrittenCheckpoint:
        """Put the groups, then the head."""
        key = keys.checkpoint_head_key(round_, self._new_id())
        for entry in entries:
            create(self._store, keys.checkpoint_group_key(key, entry.group), file.read(entry.size))
        head = checkpoint_head_bytes(weights.geometry.id, base, round_, entries)
        create(self._store, key, head)
        stored = ObjectRef(key=key, size=len(head), blake3=blake3(head).hexdigest())
        parts = sum(entry.size for entry in entries)
        return WrittenCheckpoint(round_, stored, parts, theta.hex(), momentum.hex())
