"""Examples for OpenAPI, of one small run: they agree with one another."""

from __future__ import annotations

from typing import Final

from pulse_registry.format import keys
from pulse_schemas.api import ObjectBody, PhaseBody, RunSummary, VersionBody, VersionNote, WorkerBody, WorkerSummary

RUN: Final = "math-7b"
WRITE_ID: Final = "5c8f3f1c2f0e4b7fa64c2b8f7d0a9e31"
PATCH: Final = keys.patch_key(41, 42, WRITE_ID)
CONTRIBUTION: Final = keys.OUTER + keys.contribution_key(3, "eu-1", WRITE_ID)
LAYOUT: Final = "3f" * 32
BASE: Final = f"{'c0' * 32}-0000"
SEGMENT: Final = f"{63:012d}-{LAYOUT}.safetensors"
DIGEST: Final = "9a" * 16
WHEN: Final = "2026-03-01T12:00:00.000Z"
SHA256: Final = "d1" * 32
SIGNED: Final = f"https://bucket.s3.example.com/policies/{RUN}/{PATCH}?X-Amz-Signature=..."
WORKER: Final = "rollout-17"
READER: Final = "rollout-17-5c8f3f1c"

VERSION: Final = VersionBody(
    version=42,
    step=420,
    kind="patch",
    changed=75_000_000,
    cells=7_615_616_512,
    nbytes=81_000_000,
    digest=DIGEST,
    created_at=WHEN,
    layout=LAYOUT,
    seq=43,
    metadata={"reward": 0.71},
)
OBJECT: Final = ObjectBody(key=PATCH, size=81_000_000, blake3="b3" * 32, url=SIGNED)
REPORTED: Final = WorkerBody(
    worker=WORKER,
    version=41,
    digest=DIGEST,
    phases={"fetch": 0.8, "decode": 0.7, "verify": 0.7, "apply": 0.02},
    seconds=0.94,
    nbytes=81_000_000,
    reported_at=WHEN,
    staleness=1,
    digest_matches=True,
)
SUMMARY: Final = RunSummary(
    usual_s=30.2,
    usual_nbytes=80_400_000,
    workers=WorkerSummary(workers=64, differing=0, oldest=41, newest=42, at_newest=60),
    pause_s=0.021,
    avoided=0,
    tags={"best": 40},
    tagged=1,
    note=VersionNote(version=30, text="learning rate halved"),
)
TIMELINE: Final = (
    PhaseBody(phase="fetch", start=0.01, end=0.81, busy=5.6, nbytes=81_000_000),
    PhaseBody(phase="decode", start=0.2, end=0.9, busy=1.1, nbytes=81_000_000),
    PhaseBody(phase="verify", start=0.22, end=0.92, busy=0.4, nbytes=0),
    PhaseBody(phase="apply", start=0.92, end=0.94, busy=0.02, nbytes=0),
)
SEALED: Final = '{"blake3":"...","body":{"format":"pulse-record/1","kind":"commit","run":"math-7b","seq":43}}'
OUTER_SEALED: Final = '{"blake3":"...","body":{"format":"pulse-outer/1","kind":"close","run":"math-7b","seq":9}}'
