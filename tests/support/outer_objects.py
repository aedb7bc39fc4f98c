"""Contributions to outer rounds of a small layout, and a log of records of every kind, as members write them."""

from __future__ import annotations

from typing import Any

import numpy as np
from blake3 import blake3

from pulse_kernels import Backend, Cells, Index, get_backend
from pulse_kernels.protocol import Floats, Levels
from pulse_registry.format import keys
from pulse_registry.format.contribution import contribution_bytes
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import Layout, ObjectRef, Tensor
from pulse_schemas.heads import ContributionHead
from pulse_schemas.outer import (
    CheckpointRecord,
    CloseRecord,
    ContributeRecord,
    JoinRecord,
    LeaveRecord,
    MergedRecord,
    OuterRecord,
    Rates,
    RatesRecord,
    RetireRoundsRecord,
    StartRecord,
)

RUN = "math"
GEOMETRY = Geometry(
    Layout(
        tensors=(
            Tensor(name="a", dtype="BF16", shape=(30, 7)),
            Tensor(name="b", dtype="BF16", shape=(9,)),
        )
    )
)
BASE = "0123456789abcdef" * 2
RATES = Rates(inner_steps=8, rate=0.7, momentum=0.9)


def weights(group: Group) -> list[Cells]:
    """Return the BF16 weights of a group: any will do, and these depend on no release of NumPy."""
    made = np.frombuffer(blake3(b"outer weights").digest(length=2 * GEOMETRY.cells), "<u2").copy()
    made &= 0xBFFF  # finite
    return [made[group.start : group.start + group.cells]]


def levels(count: int = 40) -> list[tuple[Group, Index, Levels]]:
    """Return levels of every fifth cell, the least and the largest among them."""
    found = []
    for group in GEOMETRY.groups:
        index = np.arange(0, group.cells, 5, dtype=np.uint32)[:count]
        values = ((np.arange(len(index)) * 37) % 13 - 6).astype(np.int16)
        values[values == 0] = 1
        values[:2] = np.array([32767, -32767], np.int16)[: len(values)]
        found.append((group, index, values))
    return found


def values() -> list[tuple[Group, Index, Floats]]:
    """Return float32 values at the same cells."""
    return [
        (group, index, (cells / np.float32(3) * np.float32(2**-20)).astype(np.float32))
        for group, index, cells in levels()
    ]


def contribution(
    parts: Any = None, backend: Backend | None = None, *, member: str = "eu-1", round_: int = 1, **head: Any
) -> bytes:
    """Return a contribution; fields of ``head`` replace what it says of itself."""
    made = levels() if parts is None else parts
    sent = "float32" if made[0][2].dtype == np.float32 else "levels"
    said = {"layout": GEOMETRY.id, "base": BASE, "round": round_, "member": member, "values": sent, "exponent": -20}
    return contribution_bytes(
        backend or get_backend("reference"),
        GEOMETRY,
        lambda changed, groups: ContributionHead(**{**said, "changed": changed, "groups": groups, **head}),
        made,
        weights,
    )


def ref_of(data: bytes, member: str = "eu-1", round_: int = 1) -> ObjectRef:
    """Return what a record says of a contribution."""
    key = keys.contribution_key(round_, member, blake3(data).hexdigest()[:32])
    return ObjectRef(key=key, size=len(data), blake3=blake3(data).hexdigest())


def every_outer_kind() -> list[OuterRecord]:
    """Return a log with records of every kind but `delete`, chained, whose contributions are of this layout."""
    made: list[OuterRecord] = []

    def add(kind: type[OuterRecord], **fields: Any) -> OuterRecord:
        previous = blake3(made[-1].seal()).hexdigest() if made else None
        common = {"run": RUN, "seq": len(made), "write_id": f"{len(made) + 1:032x}", "previous": previous}
        record = kind(**{**common, "created_at": "2026-01-02T03:04:05.678Z", **fields})
        made.append(record)
        return record

    add(
        StartRecord, version=0, layout=GEOMETRY.id, digest=BASE, rates=RATES, gain=7.0, values="levels", exponent=-20,
        quorum=1, patience=2, weighting="equal",
    )  # fmt: skip
    terms = {member: add(JoinRecord, member=member).write_id for member in ("eu-1", "us-1")}
    for round_ in (1, 2, 3):
        for member, term in terms.items():
            data = contribution(member=member, round_=round_)
            sent = ref_of(data, member, round_) if member == "eu-1" else None
            add(
                ContributeRecord, round=round_, member=member, term=term, base=BASE, steps=8, exponent=-20,
                entries=0 if sent is None else sum(len(index) for _, index, _ in levels()), object=sent,
            )  # fmt: skip
        stored = ObjectRef(key=keys.checkpoint_head_key(round_, "c" * 32), size=9, blake3="5" * 64)
        add(CheckpointRecord, round=round_, object=stored, parts=8, theta="6" * 32, momentum="7" * 32)
    merged = ObjectRef(key=keys.merged_key(3, "d" * 32), size=7, blake3="8" * 64)
    add(MergedRecord, round=3, exponent=-20, entries=4, object=merged)
    add(RatesRecord, round=9, rates=Rates(inner_steps=4, rate=0.5, momentum=0.0))
    add(CloseRecord, round=4)
    add(RetireRoundsRecord, round=2)
    add(LeaveRecord, member="us-1", term=terms["us-1"])
    return made
