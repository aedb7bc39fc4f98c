"""Models of all that Pulse Registry stores or sends as JSON. No I/O.

>>> from pulse_schemas import Layout, Tensor
>>> layout = Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(2, 3)),))
>>> Layout.parse(layout.canonical()) == layout
True
"""

from pulse_schemas.base import (
    Fault,
    JsonObject,
    Schema,
    SchemaError,
    Sealed,
    Signature,
    Signer,
    canonical_json,
    faults,
    load_json,
    open_sealed,
)
from pulse_schemas.countersignature import Countersignature
from pulse_schemas.files import FileEntry, FileSet
from pulse_schemas.heads import PatchHead
from pulse_schemas.home import Home, HomeEntry
from pulse_schemas.layout import DTYPE_ORDER, Dtype, Layout, Tensor
from pulse_schemas.lease import Lease
from pulse_schemas.mirror_mark import MirrorMark
from pulse_schemas.objects import BASES, Coder, KeyframeRef, ObjectRef, PatchRef, base_of
from pulse_schemas.records import (
    RECORD_KINDS,
    AttachRecord,
    CommitRecord,
    DeleteRecord,
    EpochRecord,
    MoveRecord,
    Record,
    RetireRecord,
    TagRecord,
    unseal_record,
)
from pulse_schemas.snapshot import (
    Head,
    NextIds,
    Retired,
    RetiredKey,
    RetiredVersion,
    SegmentedSnapshot,
    SegmentRef,
    SegmentRows,
    Snapshot,
    VersionEntry,
    unseal_snapshot,
)

__all__ = [
    "BASES",
    "DTYPE_ORDER",
    "RECORD_KINDS",
    "AttachRecord",
    "Coder",
    "CommitRecord",
    "Countersignature",
    "DeleteRecord",
    "Dtype",
    "EpochRecord",
    "Fault",
    "FileEntry",
    "FileSet",
    "Head",
    "Home",
    "HomeEntry",
    "JsonObject",
    "KeyframeRef",
    "Layout",
    "Lease",
    "MirrorMark",
    "MoveRecord",
    "NextIds",
    "ObjectRef",
    "PatchHead",
    "PatchRef",
    "Record",
    "RetireRecord",
    "Retired",
    "RetiredKey",
    "RetiredVersion",
    "Schema",
    "SchemaError",
    "Sealed",
    "SegmentRef",
    "SegmentRows",
    "SegmentedSnapshot",
    "Signature",
    "Signer",
    "Snapshot",
    "TagRecord",
    "Tensor",
    "VersionEntry",
    "base_of",
    "canonical_json",
    "faults",
    "load_json",
    "open_sealed",
    "unseal_record",
    "unseal_snapshot",
]
