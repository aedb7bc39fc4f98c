"""Pulling into a folder: it becomes a Hugging Face checkpoint of one version, and goes on to others by patches.

look -> write the new shards aside -> check all their cells -> switch the index -> remove the old shards. At every
moment the index names a whole version, the old or the new one, whatever stops the process or the machine.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.checkpoint.folder import CheckpointFolder, Mark
from pulse_registry.checkpoint.shards import MappedShards, shards_in
from pulse_registry.checkpoint.small_files import SmallFiles
from pulse_registry.errors import BaseMismatch, CorruptObject, Gone, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.format.keyframe import Shard, shards_of
from pulse_registry.process.private_files import NotOurs
from pulse_registry.registry import Registry
from pulse_registry.results import PullResult, Version
from pulse_registry.timeline import Phase
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas.files import is_data_file

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointPull:
    """Result of a pull into a folder: ``nbytes`` in ``objects`` objects were fetched; 0 where it held the version.

    ``verified``: all cells in the folder's files have the version's state digest. ``timeline``: of the pull into them.
    ``avoided``: keys of the objects that are gone or damaged, so that another route was taken.
    ``files``: names of the version's small files that the folder has now. ``left_out``: of those that may be code, and
    were not asked for; ``kept``: of those in whose place the folder has others', which stay.
    """

    version: int
    digest: str
    nbytes: int
    objects: int
    verified: bool
    timeline: tuple[Phase, ...] = ()
    avoided: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def pull_checkpoint(
    registry: Registry,
    version: int | str = "latest",
    *,
    into: Path,
    replace: bool = False,
    also: Collection[str] = (),
    lock_seconds: float = 5.0,
    files: FileOperations | None = None,
) -> CheckpointPull:
    """Bring a folder to a version, bit for bit, with the small files that the run carries.

    Of a run that carries the configuration it is then a folder that transformers and engines load. An adapter's (LoRA),
    which carries ``adapter_config.json``, has its weights as ``adapter_model.safetensors``, too.

    Args:
        registry: the run.
        version: a number, ``"latest"`` or a tag.
        into: a folder, made if it is not there. It holds no model yet, or what an earlier pull left there. Other files
            are left alone, configurations and tokenizers that no pull has put there, too.
        replace: take the folder's shards as holding nothing known, and write all anew.
        also: names of the run's files that may be code, as ``modeling_x.py``: without its name, none is written.
        lock_seconds: how long to wait for another pull into the same folder.
        files: what writes; None: the file system.

    Raises:
        NotFound: there is no such version.
        InvalidArgument: the folder holds a model of others, or of another run; or the version has no file that
            ``also`` names.
        BaseMismatch: the folder's cells are not those of the version that it says it holds.
        Conflict: another pull into the folder is under way.
        CorruptObject, UnsupportedFormat: the version can't be read.
        StoreUnavailable: the store, or the folder's disk, did not do it.
        After any of them the folder holds what it held.
    """
    target = registry.version(version)
    wanted, left_out = _chosen(registry.files(target.version), also, target.version)
    with _typed(into), CheckpointFolder(into, files or FileOperations(), lock_seconds) as out:
        held = _held(registry, out, replace=replace)
        small = SmallFiles(out)
        if held is not None and held.version == target.version:
            _check_held(registry, out, target)
            try:
                small.place(wanted, out.shards)
            except BaseException:
                _undo(small)
                raise
            small.settle()
            _tidy(out, spool=True)  # a pull that died between its last two steps has left it
            return _result(target, small, wanted, left_out)
        geometry = Geometry(registry.layout(target.version))
        try:
            if held is None or held.layout != target.layout:
                shards, result = _write_anew(registry, out, geometry, target)
            else:
                shards, result = _write_updated(registry, out, geometry, held, target)
            small.place(wanted, [shard.name for shard in shards])
            mark = Mark(run=registry.run, version=target.version, layout=target.layout, digest=target.digest)
            out.switch(geometry, shards, mark)
        except BaseException:
            _tidy(out, keep=out.shards)
            if out.mark is None or out.mark.version != target.version:  # the index was not switched, even in doubt
                _undo(small)
            raise
        small.settle()
        _tidy(out, spool=True)
        return _result(target, small, wanted, left_out, result)


def _result(
    target: Version,
    small: SmallFiles,
    wanted: Mapping[str, bytes],
    left_out: tuple[str, ...],
    pulled: PullResult | None = None,
) -> CheckpointPull:
    return CheckpointPull(
        version=target.version,
        digest=target.digest,
        nbytes=0 if pulled is None else pulled.nbytes,
        objects=0 if pulled is None else pulled.objects,
        verified=True,
        timeline=() if pulled is None else pulled.timeline,
        avoided=() if pulled is None else pulled.avoided,
        files=tuple(name for name in wanted if name not in small.kept),
        left_out=left_out,
        kept=tuple(small.kept),
    )


def _chosen(
    found: Mapping[str, bytes], also: Collection[str], version: int
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files to write, and the names of those that are left out."""
    missing = [name for name in also if name not in found]
    if missing:
        raise InvalidArgument(f"version {version} carries no file {missing[0]!r}; it has: {', '.join(found) or 'none'}")
    wanted = {name: data for name, data in found.items() if is_data_file(name) or name in also}
    return wanted, tuple(name for name in found if name not in wanted)


def _undo(small: SmallFiles) -> None:
    """Put small files back; what can't be is made right by the next pull."""
    try:
        small.undo()
    except OSError as error:
        _logger.warning("small files of another version stay until the next pull: %s", error)


def _held(registry: Registry, out: CheckpointFolder, *, replace: bool) -> Version | None:
    """Return the version that the folder says it holds, if that is to be built upon."""
    mark = out.mark
    if mark is None:
        return None
    if mark.run != registry.run:
        raise InvalidArgument(
            f"{out.path} holds version {mark.version} of run {mark.run!r}, not of {registry.run!r}; "
            "choose another folder"
        )
    if replace:
        return None
    try:
        held = registry.version(mark.version)
    except Gone:
        return None  # so old that it is forgotten
    except NotFound:
        held = None
    if held is None or (held.digest, held.layout) != (mark.digest, mark.layout):
        raise InvalidArgument(
            f"{out.path} holds version {mark.version} of another run that is called {mark.run!r} too, not of the one "
            f"in {registry.url}; choose another folder, or pull with replace=True (--replace) to replace it"
        )
    return held


def _check_held(registry: Registry, out: CheckpointFolder, held: Version) -> None:
    geometry = Geometry(registry.layout(held.version))
    shards = _old_shards(out, geometry)
    files = (os.open(out.path / shard.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) for shard in shards)
    with MappedShards(geometry, files, shards, writable=False) as mapped:
        _verify(registry, out, held, mapped)


def _write_anew(
    registry: Registry, out: CheckpointFolder, geometry: Geometry, target: Version
) -> tuple[list[Shard], PullResult]:
    shards = shards_of(geometry, suffix=out.suffix(target.version))
    paths = [out.path / shard.name for shard in shards]
    files = (out.files.create(path, shard.header, shard.nbytes) for path, shard in zip(paths, shards, strict=True))
    with MappedShards(geometry, files, shards) as mapped:
        return shards, _pull(registry, out, target, mapped, paths)


def _write_updated(
    registry: Registry, out: CheckpointFolder, geometry: Geometry, held: Version, target: Version
) -> tuple[list[Shard], PullResult]:
    old, suffix = _old_shards(out, geometry), out.suffix(target.version)
    shards = [dataclasses.replace(shard, name=_renamed(shard.name, suffix)) for shard in old]
    paths = [out.path / shard.name for shard in shards]
    files = (out.files.copy(out.path / before.name, path) for before, path in zip(old, paths, strict=True))
    with MappedShards(geometry, files, shards) as mapped:
        _verify(registry, out, held, mapped)
        return shards, _pull(registry, out, target, mapped, paths)


def _pull(
    registry: Registry, out: CheckpointFolder, target: Version, mapped: MappedShards, paths: list[Path]
) -> PullResult:
    """Change the new files' cells, check all of them, and make them durable."""
    result = registry.pull(target.version, into=mapped.tensors)
    registry.verify(target.version, model=mapped.tensors)
    mapped.release()
    mapped.flush()
    for path in paths:
        out.files.sync(path)
    return result


def _verify(registry: Registry, out: CheckpointFolder, held: Version, mapped: MappedShards) -> None:
    """Check what the files hold by a full pass; the registry remembers it, so that the next pull takes patches."""
    try:
        registry.verify(held.version, model=mapped.tensors)
    except BaseMismatch as error:
        raise _not_as_claimed(out, held.version, str(error)) from error
    mapped.release()


def _old_shards(out: CheckpointFolder, geometry: Geometry) -> list[Shard]:
    try:
        return shards_in(geometry, out.path, out.shards)
    except CorruptObject as error:
        raise _not_as_claimed(out, out.mark.version if out.mark else -1, str(error)) from error


def _not_as_claimed(out: CheckpointFolder, version: int, why: str) -> BaseMismatch:
    return BaseMismatch(
        f"{out.path} does not hold version {version} as it says: {why}. "
        "Pull with replace=True (--replace) to replace its files whole"
    )


def _renamed(name: str, suffix: str) -> str:
    return f"{name[: name.index('-pulse-v')]}{suffix}.safetensors"


def _tidy(out: CheckpointFolder, keep: list[str] | None = None, *, spool: bool = False) -> None:
    """Remove what is not needed; what can't be removed now is no failure, the next pull removes it."""
    try:
        out.tidy(keep or (), spool=spool)
    except (OSError, InvalidArgument) as error:
        _logger.warning("%s: files that are not needed any more stay until the next pull: %s", out.path, error)


@contextmanager
def _typed(folder: Path) -> Iterator[None]:
    try:
        yield
    except NotOurs as error:
        raise InvalidArgument(f"{error.filename}: {error.strerror}; remove it, or choose another folder") from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "the disk is full: free space, then try again" if full else error.strerror or str(error)
        raise StoreUnavailable(f"{folder} could not be written; it holds what it held: {advice}") from error
