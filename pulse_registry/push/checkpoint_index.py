"""The index of a checkpoint, ``model.safetensors.index.json``: which file beside it holds which tensor."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from pulse_registry.process.open_files import open_regular
from pulse_registry.quoting import quoted

INDEX_LIMIT = 64 << 20
"""Bytes of an index that are read: half a million tensors, where a model of 10^12 weights has some 10^5. What it is in
memory takes at most 20 times as much."""
_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_MOST_NAME = 255
"""Bytes of a file's name that file systems have."""


class IndexFault(ValueError):
    """The bytes are no checkpoint's index; the message says why."""


def read_index_file(path: Path) -> bytes:
    """Return an index's bytes.

    Raises:
        IndexFault: it has more than ``INDEX_LIMIT``: nothing was read.
        OSError: it can't be read, or is no regular file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > INDEX_LIMIT:
            raise IndexFault(f"it has more than {INDEX_LIMIT:,} bytes")
        return file.read(size)


def parse_index_file(data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return an index's metadata, which may be anything, and the names of the shards by those of their tensors.

    Raises:
        IndexFault: it is no index, or names files elsewhere than beside it.
    """
    try:
        document = json.loads(data.decode())
        json.dumps(document, ensure_ascii=False).encode()  # half a letter is a ValueError
    except (ValueError, RecursionError) as error:
        raise IndexFault(f"it is no JSON: {error}") from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    metadata = document.get("metadata") or {} if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not isinstance(metadata, dict):
        raise IndexFault("it has no weight_map, or metadata that are none")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_name(shard) or not name:
            raise IndexFault(f"tensor {quoted(name)} is said to be in {quoted(shard)}, which is no file beside it")
    return metadata, weight_map


def _is_name(shard: str) -> bool:
    return len(shard) <= _MOST_NAME and len(shard.encode()) <= _MOST_NAME and _SHARD.fullmatch(shard) is not None
