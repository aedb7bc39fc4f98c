"""The audit of a whole run: its log, and the layouts and objects that its live versions need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from pulse_registry.doctor.audit.defect import RESTORE, Defect, DefectKind
from pulse_registry.doctor.audit.log import THREADS, LogAudit
from pulse_registry.doctor.audit.rounds import RoundsAudit
from pulse_registry.doctor.cleaning import PREFIX
from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.format.patch_parts import PatchPart, Stored, parts_in, pieces_of
from pulse_registry.log import Guard, RunState
from pulse_registry.log.files import fetch_file_set
from pulse_registry.log.layouts import fetch_layout
from pulse_registry.log.runs import list_runs
from pulse_registry.process.hashing import large_hasher
from pulse_registry.process.parallel import parallel_map
from pulse_registry.store.verified_read import checked
from pulse_schemas import ObjectRef, PatchRef, VersionEntry

if TYPE_CHECKING:
    from pulse_registry.store import Store

_READ_BYTES: Final = 8 << 20
"""Of an object at once: memory takes so many for each thread, however large objects are."""
_BATCH: Final = 256


class RunAudit:
    """Audits one run; for one thread at a time.

    Attributes:
        run: its name.
        log: the audit of its log.
        rounds: that of its outer rounds.
        objects, nbytes: objects that live versions need, and their size, once the audit is over.
    """

    def __init__(self, store: Store, run: str, guard: Callable[[], Guard | None] = lambda: None) -> None:
        """Prepare; no I/O yet. The arguments, and what it raises, are those of `LogAudit`."""
        self.run = run
        self.log, self.rounds = LogAudit(store, run, guard), RoundsAudit(store, run, guard)
        self.objects = self.nbytes = 0
        self._store = store

    @property
    def versions(self) -> int:
        """How many versions are live."""
        return len(_live(self.log.state))

    def defects(self, *, contents: bool) -> Iterator[Defect]:
        """Look at everything, and yield what is wrong as it is found.

        Of a run that others go on with meanwhile, what has been retired since is no defect.

        Args:
            contents: read every object and check its size and hash; False only lists whether it is there.

        Raises:
            AccessDenied, StoreUnavailable: the store can't be read.
        """
        yield from self.log.defects()
        state = self.log.state
        yield from self._layouts(state)
        yield from self._files(state, contents=contents)
        yield from self._references(state)
        needed = _needed(state)
        self.objects, self.nbytes = self.objects + len(needed), self.nbytes + sum(i.size for i in needed.values())
        wrong = self._contents(needed.values()) if contents else self._unlisted(needed, keys.OBJECTS)
        told = set()
        for found in chain(wrong, self._parts(state, contents=contents)):
            if found.key not in told and _is_needed(self.log.renew(), found.key):
                told.add(found.key)
                yield found
        yield from self._rounds(contents=contents)

    def _rounds(self, *, contents: bool) -> Iterator[Defect]:
        """Look at the run's outer rounds, if it has any."""
        yield from self.rounds.defects()
        found = [*self.rounds.groups()]
        heads = [one for one in found if isinstance(one, Defect)]
        needed = self.rounds.needed() | {one.key: one for one in found if isinstance(one, ObjectRef)}
        self.objects, self.nbytes = self.objects + len(needed), self.nbytes + sum(i.size for i in needed.values())
        told = set[str]()
        wrong = self._contents(needed.values()) if contents else self._unlisted(needed, keys.OUTER + keys.OBJECTS)
        for defect in chain(heads, wrong if needed else ()):
            if defect.key not in told and self.rounds.is_needed(defect.key):
                told.add(defect.key)
                yield defect

    def _parts(self, state: RunState, *, contents: bool) -> Iterator[Defect]:
        """Look at the parts of patches, which their heads name; one head is in memory at a time."""
        for patch in _live_patches(state):
            if patch.parts is None:
                continue
            key = patch.object.key
            try:
                parts = checked(partial(self._store.get, key, (0, patch.head_size)), partial(parts_in, patch))
                needed = {part.key: part for part in parts}
            except (NotFound, CorruptObject, UnsupportedFormat) as error:
                yield Defect.of(key, error, _remedy(patch.object))
                continue
            self.objects, self.nbytes = self.objects + len(needed), self.nbytes + (patch.parts or 0)
            folder = key.rpartition("/")[0]
            yield from self._contents(needed.values()) if contents else self._unlisted(needed, f"{folder}/")

    def _layouts(self, state: RunState) -> Iterator[Defect]:
        for layout_id in sorted({entry.layout for entry in _live(state)}):
            try:
                fetch_layout(self._store, layout_id)
            except (NotFound, CorruptObject, UnsupportedFormat) as error:
                yield Defect.of(keys.layout_key(layout_id), error)

    def _files(self, state: RunState, *, contents: bool) -> Iterator[Defect]:
        """Look at the small files of live versions, which the sets that records name list."""
        needed: dict[str, ObjectRef] = {}
        for files_id in sorted({entry.files for entry in _live(state) if entry.files is not None}):
            key = keys.file_key(files_id)
            try:
                files = fetch_file_set(self._store, files_id)
            except (NotFound, CorruptObject, UnsupportedFormat) as error:
                yield Defect.of(key, error, f"{RESTORE}: its BLAKE3 is its name")
                continue
            self.objects, self.nbytes = self.objects + 1, self.nbytes + len(files.canonical())
            refs = (ObjectRef(key=keys.file_key(e.blake3), size=e.size, blake3=e.blake3) for e in files.files.values())
            needed |= {ref.key: ref for ref in refs}
        self.objects, self.nbytes = self.objects + len(needed), self.nbytes + sum(r.size for r in needed.values())
        yield from self._contents(needed.values()) if contents else self._unlisted(needed, keys.FILES)

    def _references(self, state: RunState) -> Iterator[Defect]:
        """Look for the references that keep the shared bases of live keyframes."""
        for base, retired in state.bases.items():
            key = keys.reference_key(base)
            if retired is None and not self._store.exists(key) and self.log.renew().bases[base] is None:
                yield Defect(
                    key,
                    DefectKind.MISSING,
                    f"nothing keeps the shared base {base}, which the run needs",
                    "put any bytes there before a collector of bases deletes it; if it is closed already, attach a "
                    "keyframe of the run's own: pulse compact --keyframe-every 1",
                )

    def _unlisted(self, needed: Mapping[str, Stored], folder: str) -> Iterator[Defect]:
        left = set(needed)
        for key in self._store.list(folder):
            left.discard(key)
        for key in sorted(left):
            try:
                if not self._store.exists(key):
                    yield _missing(needed[key])
            except CorruptObject as error:
                yield Defect.of(key, error, _remedy(needed[key]))

    def _contents(self, items: Iterable[Stored]) -> Iterator[Defect]:
        waiting = iter(items)
        with parallel_map(THREADS, "pulse-audit") as map_:
            while batch := [*islice(waiting, _BATCH)]:
                for found in map_(self._content, batch):
                    if found is not None:
                        yield found

    def _content(self, item: Stored) -> Defect | None:
        try:
            self._check_size(item)
            start = 0
            for size, digest in pieces_of(item):
                self._check_piece(item, range(start, start + size), digest)
                start += size
        except NotFound:
            return _missing(item)
        except CorruptObject as error:
            return Defect.of(item.key, error, _remedy(item))
        return None

    def _check_size(self, item: Stored) -> None:
        size = self._store.size(item.key)
        if size != item.size:
            raise CorruptObject(f"it has {size:,} bytes, {item.size:,} were committed")

    def _check_piece(self, item: Stored, place: range, committed: str) -> None:
        def check(digest: bytes) -> None:
            if digest.hex() != committed:
                where = "" if len(place) == item.size else f" from byte {place.start:,} to {place.stop:,}"
                raise CorruptObject(f"its BLAKE3{where} is {digest.hex()}, {committed} was committed")

        checked(lambda: self._digest(item.key, place), check)

    def _digest(self, key: str, place: range) -> bytes:
        hasher = large_hasher(0)  # in one thread: there are as many of these as read
        for start in place[::_READ_BYTES]:
            hasher.update(self._store.get(key, (start, min(start + _READ_BYTES, place.stop))))
        return hasher.digest()


def audited_runs(store: Store) -> Iterator[str]:
    """Iterate over the runs of a root, as `list_runs` does, but for empty folders, and what an examination left."""
    runs = (run for run in list_runs(store) if not run.startswith(PREFIX))
    return (run for run in runs if next(store.list(f"{run}/"), None) is not None)


def _live(state: RunState) -> list[VersionEntry]:
    return [entry for entry in state.versions if not state.is_retired(entry.version)]


def _live_patches(state: RunState) -> Iterator[PatchRef]:
    """Yield the patches between versions of which none was retired."""
    return (p for p in state.patches if not (state.is_retired(p.base) or state.is_retired(p.target)))


def _needed(state: RunState) -> dict[str, ObjectRef]:
    """Return the objects that lead to live versions, by key; not those between versions of which one was retired."""
    patches = (patch.object for patch in _live_patches(state))
    frames = (
        item
        for keyframe in state.keyframes
        if not state.is_retired(keyframe.version)
        for item in (keyframe.index, *keyframe.shards)
    )
    return {item.key: item for item in (*patches, *frames)}


def _is_needed(state: RunState, key: str) -> bool:
    return state.is_live(key) and not any(map(state.is_retired, keys.versions_of(key)))


def _missing(item: Stored) -> Defect:
    return Defect(item.key, DefectKind.MISSING, "it is not there", _remedy(item))


def _remedy(item: Stored) -> str:
    if isinstance(item, PatchPart):
        return f"{RESTORE}: {item.size:,} bytes, whose groups {keys.named_key(item.key)} tells"
    return f"{RESTORE}: {item.size:,} bytes of BLAKE3 {item.blake3}"
