"""Hostile folders of the common delta format: a delta's index, its shard, and the frame of its one tensor."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from pulse_registry.errors import BaseMismatch, CorruptObject, InvalidArgument, LayoutMismatch, UnsupportedFormat
from tests.security.attacks.forge import CELLS
from tests.security.attacks.row import Forge, Rows
from tests.security.attacks.runs import DELTA, delta_shard, zstd_frame
from tests.support.records import DictStore

_INDEX = "weight_v000001/model.safetensors.index.json"
_CHECKPOINT = "weight_v000000/model-00001-of-00001.safetensors"
_NBYTES = 2 * CELLS


def index(edit: Callable[[dict[str, Any]], Any]) -> Forge:
    """Change the delta's index."""

    def forge(store: DictStore) -> None:
        document = json.loads(store.objects[_INDEX])
        edit(document)
        store.objects[_INDEX] = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    return forge


def about(**fields: Any) -> Forge:
    """Change what the delta's index says of the delta; None leaves a field out."""

    def edit(document: dict[str, Any]) -> None:
        document["metadata"] |= fields
        document["metadata"] = {name: value for name, value in document["metadata"].items() if value is not None}

    return index(edit)


def whole(key: str, data: bytes) -> Forge:
    """Replace a file."""
    return lambda store: store.objects.update({key: data})


def frame(data: bytes, checksum: str = "00000001", **entry: Any) -> Forge:
    """Replace the frame, or what the shard's header says of it."""
    return whole(DELTA, delta_shard(data, checksum, **entry))


def overwrite(data: bytes) -> Forge:
    """Make it a delta of the other encoding, with these bytes in the frame."""

    def forge(store: DictStore) -> None:
        about(delta_encoding="overwrite")(store)
        frame(zstd_frame(data))(store)

    return forge


def _zeros(gigabytes: int) -> bytes:
    """Return a frame of so many gigabytes of zeros, at four bytes for 128 KiB, which claims no size."""
    block = (1 << 17 << 3 | 2).to_bytes(3, "little") + b"\0"
    last = (1 << 17 << 3 | 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * ((gigabytes << 13) - 1) + last


def _renamed(name: str) -> Forge:
    def forge(store: DictStore) -> None:
        data = store.objects[DELTA]
        length = int.from_bytes(data[:8], "little")
        text = data[8 : 8 + length].replace(b'"w"', json.dumps(name).encode())
        store.objects[DELTA] = struct.pack("<Q", len(text)) + text + data[8 + length :]
        index(lambda document: document.update(weight_map={name: "model-00001-of-00001.safetensors"}))(store)

    return forge


def _in_utf_16(store: DictStore) -> None:
    data = store.objects[DELTA]
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length].decode().encode("utf-16")
    store.objects[DELTA] = struct.pack("<Q", len(text)) + text + data[8 + length :]


DELTAS: Rows = {
    # the index
    "a delta that is no JSON": (whole(_INDEX, b"\xff{}"), CorruptObject),
    "a delta nested 20,000 deep": (whole(_INDEX, b"[" * 20_000), CorruptObject),
    "a delta without tensors": (index(lambda d: d.pop("weight_map")), CorruptObject),
    "a delta whose shard is above the folder": (
        index(lambda d: d.update(weight_map={"w": "../weight_v000000/model-00001-of-00001.safetensors"})),
        CorruptObject,
    ),
    "a delta whose shard is anywhere": (
        index(lambda d: d.update(weight_map={"w": "/etc/passwd.safetensors"})),
        CorruptObject,
    ),
    "a delta whose shard is not there": (
        index(lambda d: d.update(weight_map={"w": "model-00002-of-00002.safetensors"})),
        CorruptObject,
    ),
    "a delta whose shard is a number": (index(lambda d: d.update(weight_map={"w": 1})), CorruptObject),
    "a delta of an encoding that is not known": (about(delta_encoding="pickle"), UnsupportedFormat),
    "a delta of a compression that is not known": (about(compression_format="lz4"), UnsupportedFormat),
    "a delta of a checksum that is not known": (about(checksum_format="crc32"), UnsupportedFormat),
    "a delta without checksums": (about(checksum_format=None), CorruptObject),
    "a delta of no base": (about(base_version=None), CorruptObject),
    "a delta of a base that is not there": (about(base_version="000007"), (BaseMismatch, InvalidArgument)),
    "a delta of itself": (about(base_version="000001"), (BaseMismatch, InvalidArgument)),
    # the shard
    "a delta's shard of no bytes": (whole(DELTA, b""), CorruptObject),
    "a delta's shard of seven bytes": (whole(DELTA, b"\0" * 7), CorruptObject),
    "a delta's shard whose header is 2^63 bytes": (whole(DELTA, struct.pack("<Q", 2**63) + b"{}"), CorruptObject),
    "a delta's shard without checksums": (whole(DELTA, struct.pack("<Q", 2) + b"{}"), CorruptObject),
    "a delta's tensor of another dtype": (frame(zstd_frame(b""), dtype="F16"), CorruptObject),
    "a delta's tensor of 2^62 bytes": (frame(zstd_frame(b""), shape=[2**62], data_offsets=[0, 2**62]), CorruptObject),
    "a delta's tensor before its shard": (frame(zstd_frame(b""), data_offsets=[-4, 9]), CorruptObject),
    "a delta's tensor of two dimensions": (frame(zstd_frame(b""), shape=[1, 13]), CorruptObject),
    "a delta's tensor of 65 dimensions": (
        frame(zstd_frame(b""), shape=[1] * 64 + [len(zstd_frame(b""))]),
        CorruptObject,
    ),
    "a delta's tensor of 2^64 bytes, and then none": (
        frame(b"", shape=[2**63, 2, 0], data_offsets=[0, 0]),
        CorruptObject,
    ),
    "a delta's tensor whose size is text": (frame(b"none", shape=["4"]), CorruptObject),
    "a delta's tensor of 4.9 bytes": (frame(b"none", shape=[4.9]), CorruptObject),
    "a delta's tensor at a fraction of a byte": (frame(b"none", data_offsets=[0.0, 4.0]), CorruptObject),
    "a delta's shard with a hole": (frame(b"none", shape=[2], data_offsets=[2, 4]), CorruptObject),
    "a delta's shard with a byte that no tensor has": (frame(b"none", shape=[3], data_offsets=[0, 3]), CorruptObject),
    "a delta's shard whose header is UTF-16": (_in_utf_16, CorruptObject),
    "a delta of a tensor that its base does not have": (_renamed("v"), LayoutMismatch),
    # the frame
    "a frame of no bytes": (frame(b""), CorruptObject),
    "a frame of another kind": (frame(b"\x1f\x8b" + bytes(40)), CorruptObject),
    "a frame that claims 2^50 bytes": (frame(zstd_frame(b"", 2**50)), CorruptObject),
    "a frame that claims 2^64 - 2 bytes": (frame(zstd_frame(b"", 2**64 - 2)), CorruptObject),
    "a frame that claims a byte more": (frame(zstd_frame(bytes(_NBYTES), _NBYTES + 1)), CorruptObject),
    "a frame of a byte more": (frame(zstd_frame(bytes(_NBYTES + 1))), CorruptObject),
    "a frame of a byte less": (frame(zstd_frame(bytes(_NBYTES - 1))), CorruptObject),
    "a frame of a gigabyte of zeros": (frame(_zeros(1)), CorruptObject),
    "a frame that wants 2 GiB at once": (frame(b"\x28\xb5\x2f\xfd\x00\xa8" + zstd_frame(bytes(9))[13:]), CorruptObject),
    "a frame that is cut": (frame(zstd_frame(bytes(_NBYTES))[:-1]), CorruptObject),
    "a frame with junk behind it": (frame(zstd_frame(bytes(_NBYTES)) + b"junk"), CorruptObject),
    "a frame with another behind it": (frame(zstd_frame(bytes(_NBYTES)) * 2), CorruptObject),
    "another checksum": (frame(zstd_frame(bytes(_NBYTES)), "12345678"), CorruptObject),
    "no count of bytes": (overwrite(b"\1\0"), CorruptObject),
    "2^32 - 1 changed bytes": (overwrite(b"\xff" * 4), CorruptObject),
    "more changed bytes than there are": (overwrite(struct.pack("<I", 5)), CorruptObject),
    "a position past the end": (overwrite(struct.pack("<II", 1, _NBYTES) + b"\1"), CorruptObject),
    "position 2^32 - 1": (overwrite(struct.pack("<II", 1, 2**32 - 1) + b"\1"), CorruptObject),
    "a position twice": (overwrite(struct.pack("<III", 2, 5, 5) + b"\1\2"), CorruptObject),
    "positions that fall": (overwrite(struct.pack("<III", 2, 6, 5) + b"\1\2"), CorruptObject),
    "a changed byte without its value": (overwrite(struct.pack("<II", 1, 5)), CorruptObject),
    "values left over": (overwrite(struct.pack("<II", 1, 5) + b"\1\2"), CorruptObject),
    # the checkpoint
    "a checkpoint with another checksum": (
        lambda store: store.objects.update({_CHECKPOINT: store.objects[_CHECKPOINT][:-1] + b"\x77"}),
        CorruptObject,
    ),
}
