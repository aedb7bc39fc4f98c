"""Small files that go along with a version's weights, as a trainer gives them: from a folder, or from the model."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blake3 import blake3
from pydantic import ValidationError

from pulse_registry.errors import InvalidArgument, PulseError
from pulse_registry.process.open_files import open_regular, size_of
from pulse_registry.weights.model import Model, PublishDtype
from pulse_registry.weights.module import unwrapped
from pulse_schemas import FileSet, faults
from pulse_schemas.files import FILE_BYTES, is_data_file, is_weights_file

_OF_TRAINERS: Final = ("trainer_state.json", "all_results.json", "train_results.json", "eval_results.json")
"""What trainers leave in a checkpoint's folder, and changes with each of them."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Files:
    """Small files of a folder, to go along with a version's weights.

    Data files go along by themselves: ``*.json``, ``*.jinja``, ``*.txt``, ``*.model`` and ``*.tiktoken``. Files of
    weights and their indexes, trainers' states, hidden files and folders stay out.

    Attributes:
        folder: holds them.
        also: names of further ones, code above all: a ``modeling_x.py`` goes along only if it is named here.
    """

    folder: str | os.PathLike[str]
    also: Iterable[str] = ()


FilesArgument = Files | str | os.PathLike[str] | Mapping[str, bytes]
"""What a push takes as its files: a folder, or what of it; or the files themselves, by name."""


def read_files(files: FilesArgument) -> dict[str, bytes]:
    """Return the files to go along, by name.

    Raises:
        InvalidArgument: the folder or a file named can't be read, leads out of the folder by a link, is too large, or
            has a name that no file of a set can have; or there is none.
    """
    if isinstance(files, Mapping):
        return _checked(files)
    if not isinstance(files, Files | str | os.PathLike):
        raise InvalidArgument(
            f"files is of type {type(files).__name__}; it is a folder's path, Files(folder), or bytes by names"
        )
    chosen = files if isinstance(files, Files) else Files(files)
    if isinstance(chosen.also, str):
        raise InvalidArgument(f"also is {chosen.also!r}; it is a list of names of files")
    folder, also = Path(chosen.folder), tuple(chosen.also)
    try:
        names = [entry.name for entry in folder.iterdir() if _goes_along(entry)]
        contents = {name: _read(folder, name) for name in sorted({*names, *also})}
    except OSError as error:
        raise InvalidArgument(f"files: {error.filename or folder} can't be read: {error.strerror or error}") from error
    if not contents:
        raise InvalidArgument(f"files: {folder} holds no configuration, tokenizer or chat template")
    file_set_of(contents)
    return contents


def files_of_model(model: Model, dtype: PublishDtype) -> dict[str, bytes] | None:
    """Return the configuration files of a transformers model, as its ``save_pretrained`` writes them; of others, None.

    Nothing is imported: what has a ``config`` with ``to_json_string`` is taken for one. An adapter (PEFT) is none: its
    ``config`` is that of the model below it.
    """
    inner = unwrapped(model)
    config: Any = getattr(inner, "config", None)
    if isinstance(inner, Mapping) or hasattr(inner, "peft_config") or not hasattr(config, "to_json_string"):
        return None
    return configuration(inner, dtype)


def configuration(inner: Any, dtype: PublishDtype) -> dict[str, bytes] | None:
    """Return the configuration files of what is a transformers model; None, with a warning, where that can't be had."""
    config: Any = inner.config
    try:
        said = json.loads(config.to_json_string())
        if hasattr(inner, "config_class") or not said.get("architectures"):
            # FSDP2 puts its own name before that of the class.
            said["architectures"] = [type(inner).__name__.removeprefix("FSDP")]
        said["torch_dtype" if "torch_dtype" in said else "dtype"] = _published(inner, dtype)
        found = {"config.json": _written(said)}
        generation: Any = getattr(inner, "generation_config", None)
        if hasattr(generation, "to_json_string"):
            found["generation_config.json"] = _written(json.loads(generation.to_json_string()))
        file_set_of(found)
    except (AttributeError, LookupError, TypeError, ValueError, PulseError) as error:
        # Code of others, in whatever release, and nothing that the weights depend on: a push must not fail by it.
        _logger.warning("the model's configuration can't be carried, give its files by files=: %r", error)
        return None
    return found


def file_set_of(contents: Mapping[str, bytes]) -> FileSet:
    """Return the document that lists some files.

    Raises:
        InvalidArgument: they can't be a set.
    """
    entries = {name: {"size": len(data), "blake3": blake3(data).hexdigest()} for name, data in contents.items()}
    try:
        return FileSet.model_validate({"files": entries})
    except ValidationError as error:
        raise InvalidArgument(f"files: {faults(error, 'files')}") from error


def _checked(files: Mapping[str, bytes]) -> dict[str, bytes]:
    wrong = next((name for name, data in files.items() if not isinstance(data, bytes)), None)
    if wrong is not None:
        raise InvalidArgument(f"files: {wrong!r} is of type {type(files[wrong]).__name__}, and not bytes")
    file_set_of(files)
    return dict(files)


def _goes_along(entry: Path) -> bool:
    name = entry.name
    plain = not name.startswith(".") and is_data_file(name) and not is_weights_file(name) and name not in _OF_TRAINERS
    return plain and not entry.is_dir()


def _read(folder: Path, name: str) -> bytes:
    if not name or "/" in name or name in (".", ".."):
        raise InvalidArgument(f"files: {name!r} is not the plain name of a file in {folder}")
    path = folder / name
    if path.is_symlink() and not any(path.resolve().is_relative_to(root) for root in _roots(folder)):
        raise InvalidArgument(f"files: {path} is a link that leads out of its folder: put a copy in its place")
    with open_regular(path) as file:
        size = size_of(file)
        data = b"" if size > FILE_BYTES else file.read(FILE_BYTES + 1)
    if max(size, len(data)) > FILE_BYTES:
        raise InvalidArgument(
            f"files: {path} has {max(size, len(data)):,} bytes, and one file {FILE_BYTES:,} at most: it is no "
            "configuration or tokenizer; give a folder without it"
        )
    return data


def _roots(folder: Path) -> list[Path]:
    """Return where links of a folder may lead: into it; from a snapshot of Hugging Face's cache, to its blobs."""
    real = folder.resolve()
    return [real, real.parent.parent / "blobs"] if real.parent.name == "snapshots" else [real]


def _published(model: Any, dtype: PublishDtype) -> str:
    own = str(getattr(model, "dtype", "torch.bfloat16")).removeprefix("torch.")
    return "bfloat16" if dtype == "bf16" and own == "float32" else own


def _written(document: Any) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
