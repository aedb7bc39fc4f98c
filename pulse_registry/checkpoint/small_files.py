"""Small files in a checkpoint's folder: configuration, tokenizer and the like, beside the shards; an adapter's weights.

Only what a pull has put there is ever replaced or removed: a record in the folder says which bytes these are. Files of
others, even of the same names, are left alone.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from blake3 import blake3

from pulse_registry.checkpoint.folder import CheckpointFolder
from pulse_registry.process.open_files import open_regular
from pulse_schemas import SchemaError, canonical_json, load_json

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
"""Where PEFT and engines look for an adapter's weights; they read no index."""
_PLACED: Final = ".pulse-files.json"
_NEW: Final = ".pulse-file.new"
_MOST: Final = 1 << 20
_logger = logging.getLogger(__name__)


class SmallFiles:
    """The small files of a version, on their way into a folder that is locked.

    Attributes:
        kept: names of files that are others', and stay as they are.
    """

    def __init__(self, out: CheckpointFolder) -> None:
        """Read which files pulls have put there."""
        self.kept: list[str] = []
        self._out = out
        self._placed = _read_placed(out.path / _PLACED)
        self._mine: dict[str, tuple[str, ...]] = {}
        self._undo: list[Callable[[], None]] = []

    def place(self, wanted: Mapping[str, bytes], shards: Sequence[str]) -> None:
        """Make the folder have these files, and no others that a pull has put there.

        Args:
            wanted: by name.
            shards: names of the version's own shards, which are in the folder.

        Raises:
            OSError: it can't be written; ``undo`` goes back.
        """
        path = self._out.path
        writes: dict[str, Callable[[Path], None]] = {}
        ours: dict[str, str] = {}
        for name, data in wanted.items():
            ours[name] = blake3(data).hexdigest()
            writes[name] = partial(self._out.files.write, data=data)
        if ADAPTER_CONFIG in wanted and len(shards) == 1:
            shard = path / shards[0]
            ours[ADAPTER_WEIGHTS], writes[ADAPTER_WEIGHTS] = _hash_of(shard) or "", partial(self._copy, shard)
        found = {name: _hash_of(path / name) for name in {*ours, *self._placed}}
        self.kept = sorted(
            n for n in ours if found[n] not in (None, ours[n]) and found[n] not in self._placed.get(n, ())
        )
        for name in self.kept:
            _logger.warning("%s was put there by somebody else, and stays; the run has another one", path / name)
        new = [name for name in ours if found[name] != ours[name] and name not in self.kept]
        gone = [name for name in self._placed.keys() - ours.keys() if found[name] in self._placed[name]]
        self._mine = {name: (digest,) for name, digest in ours.items() if name not in self.kept}
        if (path / _NEW).exists():
            self._out.files.remove(path / _NEW)  # of a pull that was cut off
        if not new and not gone:
            return
        # First what is about to be ours: a pull that is cut off leaves nothing that the next one would not know.
        every = {*self._placed, *self._mine}
        self._say({name: sorted({*self._placed.get(name, ()), *self._mine.get(name, ())}) for name in every})
        for name in (*new, *gone):
            self._keep_old(path / name)
        for name in new:
            writes[name](path / _NEW)
            self._out.files.replace(path / _NEW, path / name)
        for name in gone:
            self._out.files.remove(path / name)
        self._out.files.sync_folder(path)

    def settle(self) -> None:
        """Take only what was placed for that of pulls, once the index names its version; what fails is of no weight."""
        try:
            if self._mine != self._placed:
                self._say(self._mine)
        except OSError as error:
            _logger.warning("%s: the record of files that pulls have put there is not up to date: %s", _PLACED, error)

    def undo(self) -> None:
        """Put back what was there before."""
        while self._undo:
            self._undo.pop()()
        self._out.files.remove(self._out.path / _NEW)

    def _keep_old(self, path: Path) -> None:
        """Note how to put a file back: an adapter's weights are those of the shard that the index names."""
        shards, files = self._out.shards, self._out.files
        if not path.exists():
            self._undo.append(partial(files.remove, path))
        elif path.name == ADAPTER_WEIGHTS:
            if len(shards) == 1:
                self._undo.append(partial(self._put_back, path, partial(self._copy, self._out.path / shards[0])))
        else:
            self._undo.append(partial(self._put_back, path, partial(files.write, data=path.read_bytes())))

    def _put_back(self, path: Path, write: Callable[[Path], None]) -> None:
        write(self._out.path / _NEW)
        self._out.files.replace(self._out.path / _NEW, path)

    def _copy(self, source: Path, target: Path) -> None:
        self._out.files.remove(target)
        os.close(self._out.files.copy(source, target))
        self._out.files.sync(target)

    def _say(self, placed: Mapping[str, Sequence[str]]) -> None:
        path = self._out.path
        self._out.files.write(path / _NEW, canonical_json(placed))
        self._out.files.replace(path / _NEW, path / _PLACED)
        self._out.files.sync_folder(path)
        self._placed = {name: tuple(digests) for name, digests in placed.items()}


def _read_placed(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the hashes of the files that pulls have put there, by name; what can't be read says nothing."""
    try:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link")
        with open_regular(path) as file:
            document = load_json(file.read(_MOST))
    except FileNotFoundError:
        return {}
    except (OSError, SchemaError) as error:
        _logger.warning("%s can't be read: files that pulls have put there count as others': %s", path, error)
        return {}
    items = document.items() if isinstance(document, dict) else ()
    plain = {name: digests for name, digests in items if isinstance(digests, list) and Path(name).name == name}
    return {name: tuple(map(str, digests)) for name, digests in plain.items()}


def _hash_of(path: Path) -> str | None:
    """Return the hash of a file's bytes; None: nothing is there; "": what is there is no file, or a link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return ""
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return ""
    with open(descriptor, "rb") as file:
        hasher = blake3()
        while block := file.read(1 << 20):
            hasher.update(block)
        return hasher.hexdigest()
