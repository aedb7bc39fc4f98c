"""Export of versions in the common delta format: whole checkpoints, deltas between any two, chains of deltas.

pull the base -> copy it -> pull the target -> compare tensor by tensor -> write frames, then the index -> rename. Both
states lie in files beside the target: memory holds the frames of a few tensors at a time, and no state.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.errors import InvalidArgument, LayoutMismatch
from pulse_registry.format.keyframe import INDEX_NAME
from pulse_registry.interop.checksum import Bytes, Checksum, hasher_of
from pulse_registry.interop.delta_index import DeltaIndex, folder_name, number_name
from pulse_registry.interop.delta_shards import DeltaShards
from pulse_registry.interop.frames import POSITIONS, Encoding, Frames, differ
from pulse_registry.interop.state_files import StateFiles, bytes_of, pieces_of
from pulse_registry.interop.temp_files import Workshop, check_free, typed
from pulse_registry.process.parallel import end
from pulse_registry.registry import Registry
from pulse_registry.results import Version, VersionName
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas.files import is_data_file

THREADS = 4
"""So many tensors are coded side by side; twice as many frames are in memory at most."""
WORKSHOP = ".pulse-export"
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Form:
    """How deltas are written.

    ModelExpress reads ``xor`` with ``adler32`` alone, the others all (docs/how-to/import-and-export.md).
    """

    encoding: Encoding = Encoding.XOR
    checksum: Checksum = Checksum.ADLER32


@dataclass(frozen=True, slots=True)
class Exported:
    """One folder that was written.

    Attributes:
        folder: where.
        version: what it makes.
        base: of which version; None for a whole checkpoint.
        tensors: how many it holds: all, or those that changed.
        nbytes: size of its shards.
    """

    folder: Path
    version: int
    base: int | None
    tensors: int
    nbytes: int


def export_full(
    registry: Registry,
    folder: Path,
    version: VersionName = "latest",
    *,
    form: Form | None = None,
    files: FileOperations | None = None,
) -> Exported:
    """Write all of a version as a Hugging Face checkpoint with a checksum of each tensor.

    Raises:
        As ``export_delta``.
    """
    with _one_folder(registry, folder, form, files) as export:
        return export.whole(registry.version(version), folder)


def export_delta(
    registry: Registry,
    folder: Path,
    base: VersionName,
    version: VersionName = "latest",
    *,
    form: Form | None = None,
    files: FileOperations | None = None,
) -> Exported:
    """Write the delta from one version to another, whichever of the two is newer.

    Args:
        registry: the run.
        folder: shows up at the end, in one step; until then it is not there, or empty.
        base: the version that readers hold.
        version: the one that they get.
        form: how it is written.
        files: what writes; None: the file system.

    Raises:
        NotFound: there is no such version.
        LayoutMismatch: the two versions have different tensors.
        AlreadyExists: the folder is there, and is not empty.
        Conflict: another export to the same folder is under way.
        InvalidArgument: the folder can't be written, or a tensor is too large for ``overwrite``.
        CorruptObject, UnsupportedFormat: a version can't be read.
        StoreUnavailable: the store did not do it, or the disk is full.
        After any of them the folder is as it was.
    """
    with _one_folder(registry, folder, form, files) as export:
        start, target = registry.version(base), registry.version(version)
        _check_layouts(start, target)
        export.hold(start)
        return export.delta(target, folder)


def export_chain(
    registry: Registry,
    folder: Path,
    base: VersionName | None = None,
    version: VersionName = "latest",
    *,
    form: Form | None = None,
    files: FileOperations | None = None,
) -> Iterator[Exported]:
    """Write each version after ``base``, up to ``version``, in a folder of its own: ``folder/weight_v000007``.

    Each is the delta from the one before; whole are one whose layout is another, and the oldest where no base is given.
    Folders that are there already are left as they are: a chain that was cut off, or has grown, is gone on with.

    Raises:
        As ``export_delta``; the folders that were written by then stay.
    """
    with (
        typed(folder),
        Workshop(folder / WORKSHOP, files or FileOperations()) as workshop,
        _Export(registry, workshop, form or Form()) as export,
    ):
        yield from _links(registry, export, folder, base, version)


def _links(
    registry: Registry, export: _Export, folder: Path, base: VersionName | None, version: VersionName
) -> Iterator[Exported]:
    target = registry.version(version)
    held = None if base is None else registry.version(base)
    if held is not None and held.version > target.version:
        raise InvalidArgument(f"a chain goes forwards, and version {target.version} is older than {held.version}")
    for found in registry.versions():
        if found.version > target.version or (held is not None and found.version <= held.version):
            continue
        place = folder / folder_name(found.version)
        if not (place / INDEX_NAME).exists():
            if held is None or held.layout != found.layout:
                yield export.whole(found, place)
            else:
                export.hold(held)
                yield export.delta(found, place)
        held = found


@contextmanager
def _one_folder(registry: Registry, folder: Path, form: Form | None, files: FileOperations | None) -> Iterator[_Export]:
    with typed(folder):
        check_free(folder)
        place = folder.absolute()
        with (
            Workshop(place.with_name(f".{place.name}{WORKSHOP}"), files or FileOperations()) as workshop,
            _Export(registry, workshop, form or Form()) as export,
        ):
            yield export


class _Export:
    """Two states in files, the one that was written last and the one to write, and the threads that compare them."""

    def __init__(self, registry: Registry, workshop: Workshop, form: Form) -> None:
        self._registry, self._workshop, self._form = registry, workshop, form
        self._hasher = hasher_of(form.checksum)
        self._held: Version | None = None
        self._states: tuple[StateFiles, StateFiles] | None = None
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(THREADS, thread_name_prefix="pulse-export"))
        self._own = threading.local()

    def __enter__(self) -> _Export:
        return self

    def __exit__(self, *error: object) -> None:
        self._states = None
        self._stack.close()

    def hold(self, version: Version) -> None:
        """Bring both states to a version that a delta is to start from."""
        if self._held == version and self._states is not None:
            return
        geometry = Geometry(self._registry.layout(version.version))
        if self._states is None or self._states[0].geometry.id != geometry.id:
            folders = [self._workshop.folder(f"{name}-{version.version}") for name in ("old", "new")]
            old, new = (
                self._stack.enter_context(StateFiles(folder, geometry, self._workshop.files)) for folder in folders
            )
            self._states = old, new
        old, new = self._states
        self._registry.pull(version.version, into=new.tensors)
        old.take(new.tensors)
        self._held = version

    def whole(self, version: Version, place: Path) -> Exported:
        """Write all of a version, with its configuration and tokenizer; never what may be code."""
        check_free(place)
        made = self._workshop.folder("made")
        geometry, checksum = Geometry(self._registry.layout(version.version)), self._form.checksum
        with StateFiles(made, geometry, self._workshop.files, checksum) as state:
            self._registry.pull(version.version, into=state.tensors)
            self._registry.verify(version.version, model=state.tensors)
            names, cells = zip(*state.stored(), strict=True)
            state.write_checksums(dict(zip(names, self._in_order(self._checksum, list(cells)), strict=True)))
            state.sync()
        for name, data in self._registry.files(version.version).items():
            if is_data_file(name):
                self._workshop.files.write(made / name, data)
        weight_map = {
            tensor.name: shard.name
            for shard in state.shards
            for tensor in geometry.layout.tensors[shard.first : shard.last]
        }
        index = DeltaIndex(number_name(version.version), None, None, checksum, weight_map)
        return self._finish(made, place, index, version, None, geometry.nbytes)

    def delta(self, target: Version, place: Path) -> Exported:
        """Write the delta from the version that is held to another one, and hold that."""
        check_free(place)
        base, states = self._held, self._states
        if base is None or states is None:
            raise RuntimeError("nothing is held")
        _check_layouts(base, target)
        self._held = None  # until both states are the target
        old, new = states
        names = [name for name, _ in old.stored()]
        self._check_sizes(old)
        self._registry.pull(target.version, into=new.tensors)
        made = self._workshop.folder("made")
        with DeltaShards(made, self._workshop.files) as shards:
            pairs = [(bytes_of(old.tensors[name]), bytes_of(new.tensors[name])) for name in names]
            for name, (_, cells), coded in zip(names, pairs, self._in_order(self._code, pairs), strict=True):
                if coded is not None:
                    shards.add(name, *coded)
                    bytes_of(old.tensors[name])[:] = cells
            weight_map = shards.finish()
        form = self._form
        index = DeltaIndex(
            number_name(target.version), number_name(base.version), form.encoding, form.checksum, weight_map
        )
        exported = self._finish(made, place, index, target, base, None)
        self._held = target
        return exported

    def _finish(
        self, made: Path, place: Path, index: DeltaIndex, version: Version, base: Version | None, total: int | None
    ) -> Exported:
        nbytes = sum(path.stat().st_size for path in made.iterdir())
        self._workshop.files.write(made / INDEX_NAME, index.document(total))
        self._workshop.publish(made, place)
        tensors = len(index.weight_map)
        return Exported(place, version.version, None if base is None else base.version, tensors, nbytes)

    def _checksum(self, cells: Bytes) -> str:
        hasher = self._hasher()
        for piece in pieces_of(cells):
            hasher.update(piece)
        return hasher.hexdigest()

    def _code(self, pair: tuple[Bytes, Bytes]) -> tuple[bytes, str] | None:
        old, new = pair
        if not differ(old, new):
            return None
        if not hasattr(self._own, "frames"):
            self._own.frames = Frames()
        hasher = self._hasher()
        frame: bytes = self._own.frames.write(self._form.encoding, old, new, hasher.update)
        return frame, hasher.hexdigest()

    def _check_sizes(self, state: StateFiles) -> None:
        for name, cells in state.stored():
            if self._form.encoding is Encoding.OVERWRITE and len(cells) > POSITIONS:
                raise InvalidArgument(
                    f"tensor {name!r} has {len(cells):,} bytes, and overwrite reaches {POSITIONS:,}; write xor"
                )

    def _in_order(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(work, item))
                if len(waiting) >= 2 * THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            end(list(waiting))


def _check_layouts(base: Version, target: Version) -> None:
    if base.layout != target.layout:
        raise LayoutMismatch(
            f"versions {base.version} and {target.version} have different tensors, and no delta leads from one to "
            f"the other; export version {target.version} whole"
        )
