"""The honest runs that attacks change: small, and the same bytes whenever they are made."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pulse_registry.format import keys
from pulse_registry.interop import export_delta, export_full
from pulse_registry.log import RunState, sealed_hash
from pulse_registry.log.fold import advance
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.signing import SigningKey
from pulse_schemas import Head, Lease
from tests.security.attacks.forge import CELLS, edit_record
from tests.support.records import DictStore, clock, every_kind, write_id
from tests.support.registries import RUN, Model, copy_of, registry_with, settle

TRUSTED, OTHER, ATTACHER = (SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (1, 2, 3))
SNAPSHOT = 10
DELTA = "weight_v000001/model-00001-of-00001.safetensors"


@dataclass(slots=True)
class Run:
    """The files of a run, and the weights of its versions."""

    store: DictStore = field(default_factory=DictStore)
    weights: list[Model] = field(default_factory=list)


def pushed(dtype: str, *versions: int, **options: object) -> Run:
    """Return a run of one tensor: the first version has a keyframe, each further one a patch of so many cells."""
    rng, run = np.random.default_rng(7), Run()
    if dtype == "float16":
        model: Model = {"w": rng.integers(0x3000, 0x4200, CELLS, dtype=np.uint16).view(np.float16)}
    else:
        model = {"w": rng.normal(0, 0.02, CELLS).astype(ml_dtypes.bfloat16)}
    ids = itertools.count(1)
    how = PushOptions(**({"dtype": "keep", "keyframe_share": 1e9} | options))  # type: ignore[arg-type]
    chosen = Options(push=how, compute=ComputeOptions(backend="reference"))
    with registry_with(run.store, chosen, clock=clock(), new_id=lambda: write_id(next(ids))) as registry:
        for step, changed in enumerate((0, *versions)):
            model["w"].view(np.uint16)[rng.permutation(CELLS)[:changed]] += rng.integers(
                1, 400, changed, dtype=np.uint16
            )
            registry.push(step, model)
            settle(registry)
            run.weights.append(copy_of(model))
    run.store.objects.pop("run/head", None)
    edit_record(run.store, 0, lambda body: body.update(writer="honest"))  # not this machine's name
    return run


def logged() -> Run:
    """Return a log of every kind of record, with a snapshot, a hint that names it, and a lease."""
    run, script = Run(), every_kind(RUN)
    state = RunState(RUN)
    for record in script.records:
        run.store.objects[f"run/{keys.record_key(record.seq)}"] = record.seal()
        advance(state, record, sealed_hash(record.seal()))
        if record.seq == SNAPSHOT:
            run.store.objects[f"run/{keys.snapshot_key(SNAPSHOT)}"] = state.to_snapshot().seal()
    run.store.objects["run/head"] = Head(seq=state.seq, snapshot=SNAPSHOT).seal()
    run.store.objects[f"run/{keys.lease_key('worker')}"] = Lease(
        run=RUN, reader="worker", version=3, seconds=3600
    ).seal()
    return run


def signed() -> Run:
    """Return the same log, each record signed."""
    run = Run()
    previous: str | None = None
    for record in every_kind(RUN).records:
        sealed = record.model_copy(update={"previous": previous}).seal(TRUSTED)
        run.store.objects[f"run/{keys.record_key(record.seq)}"] = sealed
        previous = sealed_hash(sealed)
    return run


def exported() -> Run:
    """Return folders of the common delta format, as files: a checkpoint and a delta."""
    made = pushed("float16", 200)
    run = Run(weights=made.weights)
    with (
        TemporaryDirectory() as name,
        Registry(made.store, RUN, Options(compute=ComputeOptions(backend="reference"))) as registry,
    ):
        folder = Path(name)
        export_full(registry, folder / "weight_v000000", 0)
        export_delta(registry, folder / "weight_v000001", 0, 1)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                run.store.objects[path.relative_to(folder).as_posix()] = path.read_bytes()
    old, new = (np.frombuffer(model["w"].tobytes(), np.uint8) for model in run.weights)
    run.store.objects[DELTA] = delta_shard(zstd_frame((old ^ new).tobytes()), f"{zlib.adler32(new):08x}")
    return run


def zstd_frame(data: bytes, claimed: int | None = None) -> bytes:
    """Return a frame that holds bytes as they are: the same ones with every release of zstd."""
    head = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", len(data) if claimed is None else claimed)
    return head + (len(data) << 3 | 1).to_bytes(3, "little") + data


def delta_shard(frame: bytes, checksum: str, **entry: object) -> bytes:
    """Return a delta's shard: the frame of tensor ``w``."""
    what = {"dtype": "U8", "shape": [len(frame)], "data_offsets": [0, len(frame)]} | entry
    text = json.dumps({"__metadata__": {"w": checksum}, "w": what}, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + frame


RUNS: dict[str, Callable[[], Run]] = {
    "gap": lambda: pushed("float16", 200, coder="gap"),
    "class": lambda: pushed("float16", 200, coder="class"),
    "coded": lambda: pushed("bfloat16", 50, coder="gap", keyframe_coding="exponents"),
    "log": logged,
    "signed": signed,
    "delta": exported,
}
