"""The checkpoint folder: which version it says it holds, which of its files are ours, and the lock on it.

The truth is one file, the index: it names the version and the shards, and is replaced by one rename. Files of ours that
it does not name are what a pull left that did not come to its end, and are removed by the next one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.errors import Conflict, InvalidArgument
from pulse_registry.format.keyframe import INDEX_NAME, Shard, index_document
from pulse_registry.process.private_files import hold_lock, release_lock
from pulse_registry.pull.download import PART
from pulse_registry.push.checkpoint_index import IndexFault, parse_index_file, read_index_file
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import Schema

LOCK_NAME = ".pulse.lock"
_NEW_INDEX = ".pulse-index.new"
_OURS = re.compile(r"model-[0-9]{5,}-of-[0-9]{5,}-pulse-v[0-9]+(?:-[0-9]+)?\.safetensors")
_MODEL_FILE = re.compile(r"model(?:-.*)?\.safetensors")


class Mark(Schema):
    """Run and version that the folder holds, as its index says in ``metadata.pulse``."""

    run: str
    version: int
    layout: str
    digest: str


class CheckpointFolder:
    """A folder that holds at most one version of a run. A context manager that keeps others from pulling into it.

    Attributes:
        path: of the folder.
        files: what writes.
        mark: the version that the folder says it holds; None while it holds none.
        shards: names of that version's files, in order.
    """

    def __init__(self, path: Path, files: FileOperations, lock_seconds: float) -> None:
        self.path = path
        self.files = files
        self.mark: Mark | None = None
        self.shards: list[str] = []
        self._lock_seconds = lock_seconds
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Make the folder if need be, lock it, look at it, and clear up after pulls that were cut off.

        Raises:
            Conflict: another pull is at work in it.
            InvalidArgument: it is no folder, or holds a model that no pull has put there.
            OSError: it can't be read or written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InvalidArgument(f"{self.path} is not a folder")
        if self.path.is_dir():
            self._look()  # before anything is written into somebody else's folder
        self.files.make_folder(self.path)
        self._lock = hold_lock(self.path / LOCK_NAME, self._lock_seconds)
        if self._lock is None:
            raise Conflict(f"another pull into {self.path} is under way; wait for its end, then try again")
        try:
            self._look()
            self.tidy()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            release_lock(self._lock)
        self._lock = None

    def suffix(self, version: int) -> str:
        """Return what the names of a version's new files have before ``.safetensors``: none of them is taken."""
        taken = {name[name.find("-pulse-v") :] for name in self._names()}
        suffix, attempt = f"-pulse-v{version}", 1
        while f"{suffix}.safetensors" in taken:
            attempt += 1
            suffix = f"-pulse-v{version}-{attempt}"
        return suffix

    def switch(self, geometry: Geometry, shards: Sequence[Shard], mark: Mark) -> None:
        """Make the folder hold the version whose shards were written, in one step; they are durable before it."""
        new = self.path / _NEW_INDEX
        self.files.write(new, index_document(geometry, list(shards), {"pulse": mark.model_dump()}))
        self.files.sync_folder(self.path)
        self.files.replace(new, self.path / INDEX_NAME)
        self.files.sync_folder(self.path)

    def tidy(self, keep: Collection[str] = (), *, spool: bool = False) -> None:
        """Remove the files of ours that the index does not name, but for those to ``keep``.

        ``spool``: those too that a pull which died had fetched, and the next one would go on with.
        """
        self._look()
        stay = {*self.shards, *keep}
        ours = [name for name in self._names() if name == _NEW_INDEX or _OURS.fullmatch(name)]
        parts = [name for name in self._names() if spool and PART.fullmatch(name)]
        gone = [name for name in (*ours, *parts) if name not in stay]
        if gone:
            # The index that does not name them must be the one that a power loss would leave.
            self.files.sync_folder(self.path)
        for name in gone:
            self.files.remove(self.path / name)

    def _look(self) -> None:
        """Read the index, and refuse a folder with a model of others."""
        self.mark, self.shards = self._read_index()
        for name in self._names():
            foreign = _MODEL_FILE.fullmatch(name) and not _OURS.fullmatch(name)
            if foreign and (self.mark is None or name == "model.safetensors"):
                raise InvalidArgument(
                    f"{self.path} holds a model that no pull has put there ({name}); "
                    "choose another folder, or move it away"
                )

    def _read_index(self) -> tuple[Mark | None, list[str]]:
        path = self.path / INDEX_NAME
        try:
            metadata, weight_map = parse_index_file(read_index_file(path))
            mark = Mark.model_validate(metadata["pulse"])
            names = sorted(set(weight_map.values()))
        except FileNotFoundError:
            return None, []
        except (IndexFault, KeyError, ValidationError) as error:
            raise InvalidArgument(
                f"{path} was not written by a pull, or was changed since; "
                "choose another folder, or remove the model in it"
            ) from error
        if not all(_OURS.fullmatch(name) for name in names):
            raise InvalidArgument(f"{path} names files that no pull has put there; choose another folder")
        return mark, names

    def _names(self) -> list[str]:
        return sorted(entry.name for entry in self.path.iterdir())
