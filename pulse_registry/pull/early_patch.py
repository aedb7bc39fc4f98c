"""Early read of a patch: begun as soon as its record is known, while the end of the log is still looked for.

A worker that holds the version before the newest one then waits for two requests one after the other, and not three:
the record; the patch, beside the look past the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from pulse_registry.cache import expect
from pulse_registry.context import Context
from pulse_registry.log import RunState
from pulse_registry.pull.fetch import RANGE_BYTES
from pulse_schemas import CommitRecord, PatchRef, Record


class EarlyPatch:
    """The first bytes of the patch by which a version leads to the next one; of one pull. It reads one patch at most.

    Nothing is believed because of it: what it has read is checked like what is read later. A route that does not pass
    that patch leaves it unused, which costs a request.
    """

    def __init__(self, context: Context, base: int) -> None:
        """Prepare; no I/O yet.

        Args:
            context: of the run; a thread of its ``fetchers`` reads.
            base: the version that the weights hold.
        """
        self._context, self._base = context, base
        self._key, self._nbytes = "", 0
        self._read: Future[bytes] | None = None

    def known(self, state: RunState | None) -> None:
        """Begin with the patch to the newest version that is known, where that is the next one."""
        if state is not None and len(state.versions) == self._base + 2:
            self._begin(state.patches_from(self._base))

    def heard(self, record: Record) -> None:
        """Begin with the patch that a record tells of, if it is the one."""
        if isinstance(record, CommitRecord) and record.patch is not None:
            self._begin([record.patch])

    def take(self, ref: PatchRef, nbytes: int) -> bytes | None:
        """Return the first bytes of a patch, if they were read; once. Whoever asks waits for them.

        Raises:
            NotFound, AccessDenied, StoreUnavailable: as the store.
        """
        if self._read is None or ref.object.key != self._key or nbytes > self._nbytes:
            return None
        read, self._read = self._read, None
        return read.result()[:nbytes]

    def _begin(self, patches: Sequence[PatchRef]) -> None:
        for ref in patches:
            if self._key or ref.base != self._base or ref.target != self._base + 1:
                continue
            context = self._context
            self._key, self._nbytes = ref.object.key, min(ref.object.size, RANGE_BYTES)
            expect(context.store, [ref.object])
            self._read = context.fetchers.submit(context.store.get, self._key, (0, self._nbytes))
