"""What a stored object says of itself, as a plain document: read from its bytes alone, and only as many as it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from blake3 import blake3

from pulse_kernels import CELL_TYPES
from pulse_registry.errors import CorruptObject, InvalidArgument, UnsupportedFormat
from pulse_registry.patch import read_head
from pulse_registry.pieces import CODING_FORMAT
from pulse_registry.safetensors_header import split_header
from pulse_registry.store import Store
from pulse_registry.trust.keys import key_text
from pulse_schemas import (
    Countersignature,
    Fault,
    Head,
    Layout,
    Schema,
    SchemaError,
    Snapshot,
    load_json,
    open_sealed,
    unseal_record,
)

_HEADER_LIMIT = 100 << 20
_SEALED: dict[str, Callable[[bytes], Schema]] = {
    "record": unseal_record,
    "snapshot": Snapshot.unseal,
    "head": Head.unseal,
    "countersignature": Countersignature.unseal,
}


@dataclass(frozen=True, slots=True)
class Source:
    """An object's name, its size, and what reads a range of its bytes."""

    name: str
    size: int
    read: Callable[[int, int], bytes]

    @classmethod
    def of_key(cls, store: Store, key: str) -> Self:
        """Take an object of a run; raises NotFound."""
        return cls(key, store.size(key), lambda start, stop: store.get(key, (start, stop)))

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Take a local file."""

        def read(start: int, stop: int) -> bytes:
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(stop - start)
            except OSError as error:
                raise InvalidArgument(f"{path} can't be read: {error.strerror or error}") from error

        return cls(str(path), path.stat().st_size, read)


def describe_object(source: Source) -> dict[str, Any]:
    """Return what the object is, under ``type``, and its fields.

    Raises:
        CorruptObject: it is damaged.
        UnsupportedFormat: it was written by another release.
        InvalidArgument: it is nothing of Pulse Registry's, nor a safetensors file.
    """
    about = {"object": source.name, "size": source.size}
    if source.name.endswith(".safetensors"):
        return {**about, **_safetensors(source)}
    data = source.read(0, source.size)
    if data.startswith(b'{"blake3":"'):
        return {**about, **_sealed(source.name, data)}
    if data.startswith(b"{"):
        return {**about, **_plain(source.name, data)}
    return {**about, **_safetensors(source, sure=False)}


def _safetensors(source: Source, *, sure: bool = True) -> dict[str, Any]:
    length = int.from_bytes(source.read(0, min(8, source.size)), "little")
    if length > _HEADER_LIMIT and not sure:
        raise InvalidArgument(f"{source.name} is no object of a registry and no safetensors file")
    try:
        document, start = split_header(source.read(0, min(source.size, 8 + min(length, _HEADER_LIMIT))))
        metadata = document.pop("__metadata__", {})
        if "coding" in metadata:
            return _coded_shard(source, str(metadata["coding"]), start, document["pieces"]["data_offsets"])
        if "pulse" in metadata:
            return _patch(source, start + int(document["directory"]["data_offsets"][1]))
        tensors = [_tensor(name, entry) for name, entry in document.items()]
        end = max((entry["data_offsets"][1] for entry in document.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise CorruptObject(f"{source.name} is no whole safetensors file: {error!r}") from error
    if start + end != source.size:
        raise CorruptObject(f"{source.name}: {source.size} bytes, its header says {start + end}")
    kind = "keyframe shard" if source.name.startswith("objects/keyframe/") else "safetensors"
    cells = sum(tensor["cells"] for tensor in tensors)
    return {"type": kind, "cells": cells, "metadata": metadata, "tensors": tensors}


def _coded_shard(source: Source, coding: str, start: int, place: list[int]) -> dict[str, Any]:
    if coding != CODING_FORMAT:
        raise UnsupportedFormat(f"{source.name}: it is coded as {coding!r}; this release reads {CODING_FORMAT!r}")
    if [0, source.size - start] != place:
        raise CorruptObject(f"{source.name}: {source.size} bytes, its header says {start + place[1]}")
    return {"type": "coded keyframe shard", "coding": coding, "coded_bytes": place[1]}


def _tensor(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    first, last = entry["data_offsets"]
    width = CELL_TYPES[entry["dtype"]].width if entry["dtype"] in CELL_TYPES else 1
    return {
        "name": name,
        "dtype": entry["dtype"],
        "shape": entry["shape"],
        "cells": (last - first) // width,
        "bytes": last - first,
    }


def _patch(source: Source, head_size: int) -> dict[str, Any]:
    head, entries = read_head(source.name, source.read(0, min(head_size, source.size)), source.size)
    groups = [
        {
            "group": entry.group,
            "coder": entry.coder,
            "changed": entry.changed,
            "bytes": entry.size,
            "bits_per_cell": round(8 * entry.size / entry.changed, 3) if entry.changed else None,
            "blake3": entry.blake3.hex(),
        }
        for entry in entries
    ]
    fields = head.model_dump(mode="json") | {"head_size": head_size}
    if head.changed:
        fields["bits_per_cell"] = round(8 * source.size / head.changed, 3)
    return {"type": "patch", **fields, "groups": groups}


def _sealed(name: str, data: bytes) -> dict[str, Any]:
    # A seal that does not fit comes out the same whatever the kind; a damaged format name must not choose it.
    body = _json_object(name, data).get("body")
    kind = str(body.get("format", "")).partition("/")[0].removeprefix("pulse-") if isinstance(body, dict) else ""
    document = _checked(name, kind, _SEALED.get(kind, unseal_record), data)
    signature = open_sealed(data).signature  # as the document says; it is not verified
    return document if signature is None else document | {"signed_by": key_text(signature.key)}


def _plain(name: str, data: bytes) -> dict[str, Any]:
    document = _json_object(name, data)
    if str(document.get("format", "")).startswith("pulse-layout/"):
        document = _checked(name, "layout", Layout.parse, data)
        digest, stem = blake3(data).hexdigest(), name.rpartition("/")[2].removesuffix(".json")
        if name.startswith("layouts/") and stem != digest:
            raise CorruptObject(f"{name}: its bytes do not hash to its name")
        return {"type": "layout", "id": digest, "format": document["format"], **document}
    if isinstance(document.get("weight_map"), dict):
        shards = sorted(set(map(str, document["weight_map"].values())))
        tensors = len(document["weight_map"])
        return {"type": "checkpoint index", "metadata": document.get("metadata"), "tensors": tensors, "shards": shards}
    raise InvalidArgument(f"{name} is no object of a registry: JSON of another kind")


def _checked(name: str, kind: str, parse: Callable[[bytes], Schema], data: bytes) -> dict[str, Any]:
    try:
        return {"type": kind, **parse(data).model_dump(mode="json")}
    except SchemaError as error:
        refused = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise refused(f"{name}: {error}") from error


def _json_object(name: str, data: bytes) -> dict[str, Any]:
    try:
        document = load_json(data)
    except SchemaError as error:
        raise CorruptObject(f"{name}: {error}") from error
    if not isinstance(document, dict):
        raise CorruptObject(f"{name}: it is no JSON object")
    return document
