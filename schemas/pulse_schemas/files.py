"""File set: the small files that go with a version's weights, as its configuration and tokenizer, by name and hash."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from blake3 import blake3
from pydantic import AfterValidator, Field, model_validator

from pulse_schemas.base import Hash, Schema

FILE_BYTES: Final = 64 << 20
"""Of one file: the largest tokenizers take 33 MB."""
FILES_BYTES: Final = 128 << 20
"""Of all files of a set: a reader holds them in memory."""
MOST_FILES: Final = 128
"""Of a set: a checkpoint has some ten of them."""
FILE_NAME_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}"
"""One plain name in the checkpoint's folder: no folders, nothing hidden, no letters that a file system may fold."""
_WEIGHTS: Final = re.compile(
    r".*(?:\.(?:safetensors|bin|gguf|ggml|pt|pth|ckpt|pkl|pickle|h5|msgpack|onnx|npz|npy)|\.index\.json)",
    re.IGNORECASE,
)
_DATA: Final = re.compile(r".*\.(?:json|jinja|txt|model|tiktoken)", re.IGNORECASE)


def is_weights_file(name: str) -> bool:
    """Tell whether a file of this name holds weights, or lists them: what a version stores in its own way."""
    return _WEIGHTS.fullmatch(name) is not None


def is_data_file(name: str) -> bool:
    """Tell whether a file of this name is read as data; any other may be code, and goes along only by name."""
    return _DATA.fullmatch(name) is not None


def _not_weights(name: str) -> str:
    if is_weights_file(name):
        raise ValueError("it is the name of a file of weights, which go along as cells")
    return name


FileName = Annotated[str, Field(pattern=f"^{FILE_NAME_PATTERN}$"), AfterValidator(_not_weights)]


class FileEntry(Schema):
    """One file of a set: ``size`` in bytes, ``blake3`` of all its bytes, which names the object that holds them."""

    size: Annotated[int, Field(ge=0, le=FILE_BYTES)]
    blake3: Hash


class FileSet(Schema):
    """The small files that go with a version's weights, by name. Its id is the hash of its canonical JSON."""

    files: Annotated[dict[FileName, FileEntry], Field(min_length=1, max_length=MOST_FILES)]
    format: Literal["pulse-files/1"] = "pulse-files/1"

    @model_validator(mode="after")
    def _check(self) -> Self:
        folded: dict[str, str] = {}
        for name in self.files:
            if folded.setdefault(name.lower(), name) != name:
                raise ValueError(
                    f"{folded[name.lower()]!r} and {name!r} are one file where letters' case does not count"
                )
        if sum(entry.size for entry in self.files.values()) > FILES_BYTES:
            raise ValueError(f"its files have more than {FILES_BYTES:,} bytes together")
        return self

    @property
    def id(self) -> str:
        """BLAKE3 of the canonical bytes, hex: the set's name in records and keys."""
        return blake3(self.canonical()).hexdigest()
