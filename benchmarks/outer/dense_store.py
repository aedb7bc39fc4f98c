"""Dense DiLoCo through a store, beside our rounds through the same store: bytes and seconds a round, in one run.

Written down from what gradientmail documents of Decoupled DiLoCo over a bucket, plainly: each learner puts its dense
pseudo-gradient, as float32 (zstd over shuffled bytes) or in 4 bits (E2M1, a scale for each 32 values); one of them
claims the round by a create-if-absent, fetches all, and commits the mean update in the same format; all others wait for
the commit and fetch it. The outer step is made by each from the update. What theirs does besides is left out here.

Ours: each member codes and puts its levels, fetches the others', and makes the outer step itself.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
import zstandard
from rich.console import Console

from benchmarks.outer.inner import Floats
from benchmarks.outer.methods import Levels
from benchmarks.outer.speed import GAINS, TRAINERS, moved, synthetic
from benchmarks.results import OUT, Row, machine, versions
from benchmarks.show import finish
from benchmarks.timing import seconds
from pulse_kernels.protocol import OuterRates
from pulse_registry.errors import AlreadyExists
from pulse_registry.format.contribution import Contribution
from pulse_registry.store import Store, open_store

TITLE = "A round through a store: dense DiLoCo as float32 and in 4 bits, and levels"
RATES = OuterRates(0.7, 0.9)
BLOCK = 32
Codes = Literal["F32", "F4"]
_GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""The magnitudes of E2M1."""
_BOUNDS = (_GRID[1:] + _GRID[:-1]) / 2


class Counted:
    """A store, and the bytes that went up and down."""

    def __init__(self, store: Store) -> None:
        self._store, self.up, self.down = store, 0, 0

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Put an object."""
        self._store.put(key, data, if_absent=if_absent)
        self.up += len(data)

    def get(self, key: str) -> bytes:
        """Get an object."""
        data = bytes(self._store.get(key))
        self.down += len(data)
        return data


def encode(values: Floats, codes: Codes) -> bytes:
    """Write dense values."""
    if codes == "F32":
        return zstandard.ZstdCompressor(level=1).compress(np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4).T))
    padded = np.zeros(-(-len(values) // (2 * BLOCK)) * 2 * BLOCK, np.float32)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1)
    scale = np.ceil(np.log2(np.maximum(largest, 1e-38) / 6)).astype(np.int8)
    found = np.ldexp(blocks, -scale[:, None].astype(np.int32))
    code = np.searchsorted(_BOUNDS, np.abs(found)).astype(np.uint8) | (np.signbit(found).astype(np.uint8) << 3)
    pairs = code.reshape(-1, 2)
    return len(values).to_bytes(8, "little") + scale.tobytes() + (pairs[:, 0] | (pairs[:, 1] << 4)).tobytes()


def decode(data: bytes, codes: Codes) -> Floats:
    """Invert ``encode``, as far as the format keeps values."""
    if codes == "F32":
        planes = np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint8)
        return np.ascontiguousarray(planes.reshape(4, -1).T).view(np.float32)[:, 0]
    cells = int.from_bytes(data[:8], "little")
    blocks = -(-cells // (2 * BLOCK)) * 2
    scale = np.frombuffer(data, np.int8, blocks, 8)
    pairs = np.frombuffer(data, np.uint8, blocks * BLOCK // 2, 8 + blocks)
    code = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(blocks, BLOCK)
    values = np.where(code & 8, -_GRID[code & 7], _GRID[code & 7])
    found: Floats = np.ldexp(values, scale[:, None].astype(np.int32)).astype(np.float32).reshape(-1)[:cells]
    return found


def dense_round(
    store: Counted, round_: int, theta: Floats, momentum: Floats, locals_: list[Floats], codes: Codes
) -> None:
    """Make a round of all learners, one after the other; what all compute alike of the update is done once."""
    for learner, local in enumerate(locals_):
        store.put(f"round/{round_}/delta/{learner}", encode(theta - local, codes))
    for learner in range(len(locals_)):
        try:
            store.put(f"round/{round_}/claim", str(learner).encode(), if_absent=True)
        except AlreadyExists:
            continue
        total = np.zeros_like(theta)
        for other in range(len(locals_)):
            total += decode(store.get(f"round/{round_}/delta/{other}"), codes)
        total /= np.float32(len(locals_))
        store.put(f"round/{round_}/update", encode(total, codes))
        store.put(f"round/{round_}/commit", b"{}", if_absent=True)
    updates = [store.get(f"round/{round_}/update") for _ in locals_]
    update = decode(updates[0], codes)
    np.multiply(momentum, np.float32(RATES.momentum), out=momentum)
    momentum += update
    theta -= np.float32(RATES.rate) * (update + np.float32(RATES.momentum) * momentum)


def levels_round(store: Counted, round_: int, method: Levels, locals_: list[Floats]) -> None:
    """Make a round of all members, one after the other.

    Each fetches the others' contributions; what all compute alike, decoding them and stepping, is done once.
    """
    refs = []
    for member, local in enumerate(locals_):
        method.contribute(member, local)
        if method.coded is None:
            raise ValueError("nothing passes the gate")
        store.put(f"levels/{round_}/{member}", method.coded)
        refs.append(method.ref(method.coded))
    for member in range(len(locals_)):
        fetched = {k: store.get(f"levels/{round_}/{k}") for k in range(len(locals_)) if k != member}
        if member:
            continue
        for k, data in fetched.items():
            found = Contribution.parse(refs[k], method.geometry, data)
            for number in found.entries:
                group = method.geometry.groups[number]
                found.decode(method.backend, group, [method.outer.version_cells(group)])
    method.step()


def measure(
    url: str, cells: int, rounds: int, seed: int, say: Callable[[str], None]
) -> dict[str, list[dict[str, float]]]:
    """Make rounds in all ways, by turns, with the same local weights; return bytes and seconds of each, by way."""
    listed, start = synthetic(cells, seed)
    theta = (start.astype(np.uint32) << 16).view(np.float32)
    dense: dict[Codes, tuple[Floats, Floats]] = {
        "F32": (theta.copy(), np.zeros_like(theta)),
        "F4": (theta.copy(), np.zeros_like(theta)),
    }
    levels = {gain: Levels(listed, start, TRAINERS, RATES, gain) for gain in GAINS}
    names = ["F32", "F4", *(f"gain {gain:g}" for gain in GAINS)]
    stores = {name: Counted(open_store(f"{url}/{name}")) for name in names}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in stores}
    for round_ in range(1, rounds + 1):
        works: dict[str, Callable[[], None]] = {}
        for codes, (weights, momentum) in dense.items():
            locals_ = [moved(weights, seed + 100 * round_ + k) for k in range(TRAINERS)]
            works[codes] = partial(dense_round, stores[codes], round_, weights, momentum, locals_, codes)
        for gain, method in levels.items():
            locals_ = [moved(method.weights(), seed + 100 * round_ + k) for k in range(TRAINERS)]
            works[f"gain {gain:g}"] = partial(levels_round, stores[f"gain {gain:g}"], round_, method, locals_)
        for name, work in works.items():
            store = stores[name]
            store.up = store.down = 0
            taken = seconds(work)
            found[name].append({"seconds": taken, "up": store.up, "down": store.down})
            say(f"round {round_}, {name}: {taken:.2f} s, up {store.up / 1e6:.2f} MB, down {store.down / 1e6:.2f} MB")
    return found


def rows(found: dict[str, list[dict[str, float]]]) -> list[Row]:
    """Return the figures of the rounds after the first, medians."""
    listed = []
    for name, rounds in found.items():
        after = rounds[1:] or rounds
        what = f"dense, {name}" if name in ("F32", "F4") else f"levels, {name}"
        for key, unit, scale in (("up", "MB", 1e-6), ("down", "MB", 1e-6), ("seconds", "s", 1.0)):
            value = scale * statistics.median(one[key] for one in after)
            listed.append(Row(f"{name}.{key}", f"{what}: {_WHAT[key]} of a round, four trainers", value, unit))
    return listed


_WHAT = {"up": "bytes put", "down": "bytes fetched", "seconds": "time"}


def run(
    cells: Annotated[int, typer.Option(help="Of the model.", min=10_000)] = 16_000_000,
    rounds: Annotated[int, typer.Option(help="Of which the first is not told.", min=2)] = 4,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 0,
    url: Annotated[str | None, typer.Option(help="Of the store; default: a folder of its own.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = OUT,
) -> None:
    """Make rounds of dense DiLoCo and of levels through one store; write a result file."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder:
        found = measure(url or folder, cells, rounds, seed, console.print)
    document: dict[str, Any] = {
        "kind": "outer-dense",
        "title": TITLE,
        "machine": machine(),
        "versions": versions(),
        "settings": {"cells": cells, "rounds": rounds, "seed": seed, "trainers": TRAINERS},
        "rows": [row.document() for row in rows(found)],
        "found": found,
    }
    finish(console, document, out / "outer" / "dense.json")
