"""Write the JSON Schema of every stored document: ``python -m pulse_schemas.export DIR``.

Layouts are stored as they are; records, outer records, countersignatures, snapshots, homes and the head hint are
stored sealed, as ``{"blake3": <hash of body>, "body": <document>}``: the files describe the body.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pulse_schemas.base import Schema
from pulse_schemas.countersignature import Countersignature
from pulse_schemas.files import FileSet
from pulse_schemas.home import Home
from pulse_schemas.layout import Layout
from pulse_schemas.lease import Lease
from pulse_schemas.mirror_mark import MirrorMark
from pulse_schemas.outer import OUTER_KINDS
from pulse_schemas.outer_snapshot import OuterSnapshot
from pulse_schemas.records import RECORD_KINDS
from pulse_schemas.snapshot import Head, SegmentedSnapshot, Snapshot

DOCUMENTS: Mapping[str, type[Schema]] = {
    "countersignature": Countersignature,
    "file-set": FileSet,
    "head": Head,
    "home": Home,
    "layout": Layout,
    "lease": Lease,
    "mirror-mark": MirrorMark,
    **{f"outer-{kind}": record for kind, record in OUTER_KINDS.items()},
    "outer-snapshot": OuterSnapshot,
    **{f"record-{kind}": record for kind, record in RECORD_KINDS.items()},
    "snapshot": Snapshot,
    "snapshot-segmented": SegmentedSnapshot,
}


def exported() -> dict[str, str]:
    """Return file name -> text of each JSON Schema; the same bytes on every call."""
    return {f"{name}.schema.json": _text(model) for name, model in DOCUMENTS.items()}


def _text(model: type[Schema]) -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Write the files into the one directory named; return the exit status."""
    if len(arguments) != 1:
        print("usage: python -m pulse_schemas.export DIR", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in exported().items():
        (directory / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
