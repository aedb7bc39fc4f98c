"""Models of all that Pulse Registry stores or sends as JSON. No I/O.

>>> from pulse_schemas import Layout, Tensor
>>> layout = Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(2, 3)),))
>>> Layout.parse(layout.canonical()) == layout
True
"""

from pulse_schemas.base import Fault, JsonObject, Schema, SchemaError, canonical_json, load_json
from pulse_schemas.heads import PatchHead
from pulse_schemas.layout import DTYPE_ORDER, Dtype, Layout, Tensor
from pulse_schemas.objects import Coder, KeyframeRef, ObjectRef, PatchRef
from pulse_schemas.records import (
    AttachRecord,
    CommitRecord,
    EpochRecord,
    Record,
    RetireRecord,
    unseal_record,
)
from pulse_schemas.snapshot import Head, Snapshot, VersionEntry

__all__ = [
    "DTYPE_ORDER",
    "AttachRecord",
    "Coder",
    "CommitRecord",
    "Dtype",
    "EpochRecord",
    "Fault",
    "Head",
    "JsonObject",
    "KeyframeRef",
    "Layout",
    "ObjectRef",
    "PatchHead",
    "PatchRef",
    "Record",
    "RetireRecord",
    "Schema",
    "SchemaError",
    "Snapshot",
    "Tensor",
    "VersionEntry",
    "canonical_json",
    "load_json",
    "unseal_record",
]
