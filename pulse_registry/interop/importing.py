"""Import of folders in the common delta format: each becomes the run's next version.

find -> order -> bring a private state to the first one's base -> apply frames, check every changed tensor -> push.
What was pushed before an error stays; what the error befell is a private file's, and goes.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.errors import CorruptObject, LayoutMismatch
from pulse_registry.interop.checksum import Bytes, Checksum, hasher_of
from pulse_registry.interop.delta_files import Frame, checksums_of, frames_of
from pulse_registry.interop.delta_index import DeltaIndex, number_name, number_of
from pulse_registry.interop.frames import Encoding, FrameFault, Frames
from pulse_registry.interop.sources import Link, find_links, ordered
from pulse_registry.interop.state_files import StateFiles, bytes_of, pieces_of
from pulse_registry.interop.temp_files import typed
from pulse_registry.process.parallel import parallel_map
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_registry.push.checkpoint_source import read_checkpoint
from pulse_registry.registry import Registry
from pulse_registry.results import Version
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model

THREADS = 4
METADATA = "hf_delta"
"""Under this name a version's metadata say which version of the folders it is."""


@dataclass(frozen=True, slots=True)
class Imported:
    """One folder that became a version.

    Attributes:
        folder: which.
        name: its version's, as its writer called it.
        version: of the run.
        changed, cells: cells that differ from the version before, of all.
        nbytes: that were stored for it.
        digest: state digest.
    """

    folder: Path
    name: str
    version: int
    changed: int
    cells: int
    nbytes: int
    digest: str


def import_folder(registry: Registry, folder: Path, *, spool: Path | None = None) -> Iterator[Imported]:
    """Push what a folder holds: a checkpoint, a delta, or folders of them; yields each once it is committed.

    What the run has already is left out: an import that was cut off, or a chain that has grown, is gone on with.

    Args:
        registry: the run, opened to publish tensors as they are (``dtype="keep"``).
        folder: what to import; it is only read.
        spool: folder for the state on its way; None for the system's temporary folder.

    Raises:
        InvalidArgument: there is nothing to import, or nothing says what follows what.
        BaseMismatch: a delta builds on a version that is neither there nor the run's newest.
        LayoutMismatch: a delta has a tensor that its base does not have.
        CorruptObject, UnsupportedFormat, InvalidModel: a folder is damaged, or of another kind.
        Fenced, Conflict, StoreUnavailable, AccessDenied: as ``Registry.push``.
        What was yielded is committed; of the rest the run has nothing.
    """
    with Importer(registry, spool=spool) as importer:
        yield from importer.folder(folder)


class Importer:
    """A private state that goes from version to version: of folders that come one by one, the base is pulled once.

    A context manager, for one thread. It takes the model's size in the temporary folder until it ends.
    """

    def __init__(self, registry: Registry, *, spool: Path | None = None) -> None:
        """Prepare; see `import_folder`."""
        self._registry, self._spool = registry, spool
        self._stack = ExitStack()
        self._map = self._stack.enter_context(parallel_map(THREADS, "pulse-import"))
        self._own = threading.local()
        self._state: StateFiles | None = None
        self._holds: int | None = None  # the version that the state is, whole

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *error: object) -> None:
        self._state = None
        self._stack.close()

    def folder(self, folder: Path) -> Iterator[Imported]:
        """Push what a folder holds, and the run lacks; see `import_folder`."""
        with typed(folder):
            versions = self._registry.versions()
            names = [_name(version) for version in versions]
            newest = versions[-1].version if versions else None
            for link in ordered(find_links(folder), names[-1] if names else None, names):
                holds, self._holds = self._holds, None  # nothing, should this one fail
                imported = self._take(link, based=holds is not None and holds == newest)
                self._holds = newest = imported.version
                yield imported

    def _take(self, link: Link, *, based: bool) -> Imported:
        """Push one version; ``based``: the state is the run's newest one."""
        index, files = link.index(), None
        if index is not None and index.encoding is not None:
            state = self._state if based and self._state is not None else self._base()
            self._apply(link, index, index.encoding, state)
        else:
            tensors = read_checkpoint(link.folder)
            state = self._fit(Geometry(layout_of(read_model(tensors), "keep")))
            state.read(tensors)
            self._check_whole(link, index, state)
            files = link.folder if (link.folder / "config.json").exists() else None
        number = number_of(link.version)
        step = len(self._registry.versions()) if number is None else number
        about = {"version": link.version, **({} if link.base is None else {"base_version": link.base})}
        result = self._registry.push(step, state.tensors, metadata={METADATA: about}, files=files)
        return Imported(
            link.folder, link.version, result.version, result.changed, result.cells, result.nbytes, result.digest
        )

    def _base(self) -> StateFiles:
        """Pull what a delta builds on, into writable files: the run's newest version."""
        state = self._fit(Geometry(self._registry.layout("latest")))
        self._registry.pull("latest", into=state.tensors, replace=True)  # whatever they hold
        return state

    def _fit(self, geometry: Geometry) -> StateFiles:
        if self._state is None or self._state.geometry.id != geometry.id:
            folder = Path(tempfile.mkdtemp(prefix="pulse-import-", dir=self._spool or temporary_folder()))
            try:
                self._state = self._stack.enter_context(StateFiles(folder, geometry, FileOperations()))
            finally:
                shutil.rmtree(folder)  # the maps are all that is needed, and go with this process, however it ends
        return self._state

    def _apply(self, link: Link, index: DeltaIndex, encoding: Encoding, state: StateFiles) -> None:
        cells = dict(state.stored())
        hasher = hasher_of(index.checksum or Checksum.ADLER32)
        with frames_of(link.folder, index, self._spool) as frames:
            for frame in frames:
                if frame.tensor not in cells:
                    raise LayoutMismatch(
                        f"{link.folder / index.weight_map[frame.tensor]}: tensor {frame.tensor!r} is not in version "
                        f"{index.base}, on which it builds"
                    )

            def apply(frame: Frame) -> None:
                where = f"{link.folder / index.weight_map[frame.tensor]}: tensor {frame.tensor!r}"
                hashed = hasher()
                try:
                    self._frames().read(encoding, frame.data, cells[frame.tensor], hashed.update)
                except FrameFault as error:
                    raise CorruptObject(f"{where}: {error}") from error
                _compare(where, hashed.hexdigest(), frame.checksum, index)

            self._map(apply, frames)

    def _check_whole(self, link: Link, index: DeltaIndex | None, state: StateFiles) -> None:
        if index is None or index.checksum is None:
            return  # an ordinary checkpoint has none
        hasher = hasher_of(index.checksum)
        wanted = checksums_of(link.folder, index)

        def check(name: str, cells: Bytes) -> None:
            hashed = hasher()
            for piece in pieces_of(cells):
                hashed.update(piece)
            where = f"{link.folder / index.weight_map[name]}: tensor {name!r}"
            _compare(where, hashed.hexdigest(), wanted[name], index)

        names = list(wanted)
        self._map(check, names, [bytes_of(state.tensors[name]) for name in names])

    def _frames(self) -> Frames:
        if not hasattr(self._own, "frames"):
            self._own.frames = Frames()
        frames: Frames = self._own.frames
        return frames


def _compare(where: str, found: str, wanted: str, index: DeltaIndex) -> None:
    if found == wanted.lower():
        return
    why = f", or was made of another version {index.base} than the one at hand" if index.is_delta else ""
    raise CorruptObject(f"{where}: its {index.checksum} is {found}, not {wanted[:64]}: it is damaged{why}")


def _name(version: Version) -> str:
    about = version.metadata.get(METADATA)
    name = about.get("version") if isinstance(about, Mapping) else None
    return name if isinstance(name, str) else number_name(version.version)
