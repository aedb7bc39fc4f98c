"""All targets, by name. Each is made when it is asked for: what a target needs, the others don't wait for."""

from __future__ import annotations

from collections.abc import Callable

from pulse_kernels import get_backend
from tests.security.fuzz import (
    bucket,
    deltas,
    documents,
    groups,
    heads,
    keyframes,
    outer,
    patches,
    pulls,
    requests,
    segments,
    service,
    signatures,
)
from tests.security.fuzz.target import Target


def _group() -> Target:
    return groups.group_target(get_backend("reference"), get_backend("numba"))


def _patch() -> Target:
    return patches.patch_target(get_backend("reference"), get_backend("numba"))


def _contribution() -> Target:
    return outer.contribution_target(get_backend("reference"), get_backend("numba"))


TARGETS: dict[str, Callable[[], Target]] = {
    "record": documents.record_target,
    "snapshot": documents.snapshot_target,
    "segment": segments.segment_target,
    "segmented": segments.segmented_target,
    "head": documents.head_target,
    "layout": documents.layout_target,
    "file-set": documents.file_set_target,
    "patch-head": documents.patch_head_target,
    "patch": _patch,
    "group": _group,
    "contribution": _contribution,
    "outer-record": outer.outer_record_target,
    "checkpoint-head": outer.checkpoint_head_target,
    "admission": outer.admission_target,
    "index": keyframes.index_target,
    "shard": keyframes.shard_target,
    "safetensors": heads.head_target,
    "exponents": keyframes.exponents_target,
    "pull": pulls.pull_target,
    "bucket": bucket.bucket_target,
    "service": service.service_target,
    "connection": requests.connection_target,
    "body": requests.body_target,
    "signed": signatures.signed_target,
    "lease": documents.lease_target,
    "delta-index": deltas.delta_index_target,
    "delta-frame": deltas.frame_target,
    "delta-folder": deltas.delta_folder_target,
}
