"""Description of a stored object as a plain document, read from as few of its bytes as it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from blake3 import blake3

from pulse_kernels import CELL_TYPES
from pulse_registry.errors import CorruptObject, InvalidArgument, UnsupportedFormat
from pulse_registry.format.keys import FILES, OBJECTS
from pulse_registry.format.patch_head import read_head
from pulse_registry.format.pieces import CODING_FORMAT, MOST_INDEX_BYTES
from pulse_registry.format.safetensors import BITS, Header, HeaderFault, TensorPlace, head_of, parse_head
from pulse_registry.format.segment import FORMAT as SEGMENT_FORMAT
from pulse_registry.log.documents import SNAPSHOT, most_bytes
from pulse_registry.log.files import FILE_SET_BYTES
from pulse_registry.process.open_files import reader_of, size_of
from pulse_registry.quoting import quoted
from pulse_registry.signing.keys import key_text
from pulse_registry.store import Store
from pulse_schemas import (
    Countersignature,
    Fault,
    FileSet,
    Head,
    Home,
    Layout,
    Schema,
    SchemaError,
    load_json,
    open_sealed,
    unseal_record,
    unseal_snapshot,
)

_HEAD_LIMIT = 256 << 20
"""Of a patch: the largest layout that there is has two million groups, of 80 bytes each."""
_SEALED: dict[str, Callable[[bytes], Schema]] = {
    "record": unseal_record,
    "snapshot": unseal_snapshot,
    "head": Head.unseal,
    "home": Home.unseal,
    "countersignature": Countersignature.unseal,
}


@dataclass(frozen=True, slots=True)
class Source:
    """An object's name, its size, what reads a range of its bytes, and how long it is at most if it is read whole."""

    name: str
    size: int
    read: Callable[[int, int], bytes]
    most: int

    @classmethod
    def of_key(cls, store: Store, key: str) -> Self:
        """Take an object of a run; raises NotFound."""
        most = MOST_INDEX_BYTES if key.startswith(OBJECTS) else most_bytes(key)
        return cls(key, store.size(key), lambda start, stop: store.get(key, (start, stop)), most)

    @classmethod
    def of_file(cls, path: Path, file: BinaryIO) -> Self:
        """Take a local file, which is open."""
        return cls(str(path), size_of(file), reader_of(file), SNAPSHOT)


def describe_object(source: Source) -> dict[str, Any]:
    """Return what the object is, under ``type``, and its fields.

    Raises:
        CorruptObject: it is damaged.
        UnsupportedFormat: it was written by another release.
        InvalidArgument: it is nothing of Pulse Registry's, nor a safetensors file.
    """
    about = {"object": source.name, "size": source.size}
    if source.name.startswith(FILES) and source.size > FILE_SET_BYTES:
        return {**about, "type": "file"}
    if source.name.endswith(".safetensors"):
        return {**about, **_safetensors(source)}
    if source.read(0, min(1, source.size)) != b"{":
        if source.name.startswith(FILES):
            return {**about, "type": "file"}
        if source.name.endswith("/patch-head"):
            return {**about, **_patch_head(source)}
        return {**about, **_safetensors(source, sure=False)}
    if source.size > source.most:
        raise CorruptObject(f"{source.name} has {source.size} bytes, and no such document has more than {source.most}")
    data = source.read(0, source.size)
    if data.startswith(b'{"blake3":"'):
        return {**about, **_sealed(source.name, data)}
    if source.name.startswith(FILES) and b'"pulse-files/' not in data:
        return {**about, "type": "file"}
    return {**about, **_plain(source.name, data)}


def _safetensors(source: Source, *, sure: bool = True) -> dict[str, Any]:
    try:
        header = parse_head(head_of(source.read, source.size), source.size)
    except HeaderFault as error:
        if not sure:
            raise InvalidArgument(f"{source.name} is no object of a registry and no safetensors file") from error
        raise CorruptObject(f"{source.name} is no whole safetensors file: {error}") from error
    if "coding" in header.metadata:
        return _coded_shard(source.name, header)
    if "pulse" in header.metadata:
        return _patch(source, header)
    kind = "keyframe shard" if source.name.startswith("objects/keyframe/") else "safetensors"
    kind = "segment" if header.metadata.get("format") == SEGMENT_FORMAT else kind
    tensors = [_tensor(name, place) for name, place in header.tensors.items()]
    cells = sum(tensor["cells"] for tensor in tensors)
    return {"type": kind, "cells": cells, "metadata": header.metadata, "tensors": tensors}


def _coded_shard(name: str, header: Header) -> dict[str, Any]:
    coding = header.metadata["coding"]
    if coding != CODING_FORMAT:
        raise UnsupportedFormat(f"{name}: it is coded as {quoted(coding)}; this release reads {CODING_FORMAT!r}")
    if header.tensors.keys() != {"pieces"}:
        raise CorruptObject(f"{name}: it is no coded shard of a keyframe")
    return {"type": "coded keyframe shard", "coding": coding, "coded_bytes": header.tensors["pieces"].stop}


def _tensor(name: str, place: TensorPlace) -> dict[str, Any]:
    nbytes = place.stop - place.start
    known = CELL_TYPES.get(place.dtype)
    cells = 8 * nbytes // BITS[place.dtype] if known is None else nbytes // known.width
    return {"name": name, "dtype": place.dtype, "shape": list(place.shape), "cells": cells, "bytes": nbytes}


def _patch_head(source: Source) -> dict[str, Any]:
    """Describe a patch in parts by its head, whose header says how large head and parts are together."""
    try:
        text = head_of(source.read, source.size)
        size = len(text) + int(load_json(text[8:])["groups"]["data_offsets"][1])
        header = parse_head(text, size)
        end = header.nbytes + header.tensors["directory"].stop
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptObject(f"{source.name} is no head of a patch: {error}") from error
    if end != source.size:
        raise CorruptObject(f"{source.name} has {source.size} bytes, and its header says {end}")
    return {**_patch(replace(source, size=size), header), "parts": size - source.size}


def _patch(source: Source, header: Header) -> dict[str, Any]:
    if "directory" not in header.tensors:
        raise CorruptObject(f"{source.name}: this is not a patch object: it has no directory")
    head_size = header.nbytes + header.tensors["directory"].stop
    if head_size > _HEAD_LIMIT:
        raise CorruptObject(f"{source.name}: its header says that its head has {head_size} bytes")
    head, directory = read_head(source.name, source.read(0, head_size), source.size)
    groups = [
        {
            "group": entry.group,
            "coder": entry.coder,
            "changed": entry.changed,
            "bytes": entry.size,
            "bits_per_cell": round(8 * entry.size / entry.changed, 3) if entry.changed else None,
            "blake3": entry.blake3.hex(),
        }
        for entry in directory.values()
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
    if str(document.get("format", "")).startswith("pulse-files/"):
        document = _checked(name, "file set", FileSet.parse, data)
        files = [{"name": file, **entry} for file, entry in sorted(document.pop("files").items())]
        return {**document, "id": blake3(data).hexdigest(), "files": files}
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
