"""What W&B wrote of an offline run: its file is a log of LevelDB's, whose records are protocol buffers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK, _IDENT, _HEAD = 32 << 10, 7, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of history of the run whose files lie in a folder, without W&B's own columns."""
    (file,) = folder.glob("*.wandb")
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in _records(file.read_bytes())
        if record.WhichOneof("record_type") == "history"
    ]


def _records(data: bytes) -> Iterator[Record]:
    at, parts = _IDENT, b""
    while at + _HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD:  # what is left of a block that holds no head is padding
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + _HEAD])
        part, at = data[at + _HEAD : at + _HEAD + size], at + _HEAD + size
        parts = part if kind in (_FULL, _FIRST) else parts + part
        if kind in (_FULL, _LAST):
            record = Record()
            record.ParseFromString(parts)
            yield record
