"""What others' codecs make of the same states: bytes, and time beside XOR + zstd-1 in the same turn.

At each step every codec that can decode codes the step and decodes it in place, one after the other, and the result is
compared with the new state. The library's own figures come from its pushes and pulls (see ``push_pull``), whose times
are against XOR + zstd-1 in the same turn as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common_format import STREAMED, XorZstd
from benchmarks.peers import fireworks, ranks
from benchmarks.peers.paper import PaperCodec
from benchmarks.peers.peer import Peer
from benchmarks.peers.raw import Raw
from benchmarks.results import Row
from benchmarks.states import Live, States, save_states, visits
from benchmarks.timing import ratio, seconds
from pulse_kernels import CELL_TYPES

COMMON = "XOR + zstd-1"
_FIREWORKS_STEPS = 4
"""It takes seconds a step."""


@dataclass(slots=True)
class Measured:
    """One codec: bytes a step, seconds a turn; no seconds where only its size is known."""

    nbytes: list[int] = field(default_factory=list)
    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Codecs:
    """All of them by name, and why some are missing."""

    measured: dict[str, Measured] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def measure_codecs(states: States, threads: int, repeats: int, home: Path, folder: Path, *, install: bool) -> Codecs:
    """Code and decode all steps, at least ``repeats`` times, with each codec.

    Args:
        states: to run on.
        threads: of each codec.
        repeats: at least so many turns.
        home: the environment of Fireworks' package.
        folder: an empty one, for states as files.
        install: whether to make that environment where it is missing.
    """
    found = Codecs()
    peers: tuple[Peer, ...] = (XorZstd(threads, STREAMED), Raw(threads), PaperCodec(threads))
    before, after, receiver = Live(states), Live(states), Live(states)
    for turn, state in enumerate(visits(len(states.steps), repeats)):
        after.go(state)
        for peer in peers:
            nbytes = _turn(found.measured.setdefault(peer.name, Measured()), peer, before, after, receiver)
            if turn < len(states.steps):
                found.measured[peer.name].nbytes.append(nbytes)
        if turn < len(states.steps):
            found.measured.setdefault(ranks.NAME, Measured()).nbytes.append(_ranks(states, before, after))
        before.go(state)
        receiver.go(state)
    for peer in peers:
        peer.close()
    try:
        found.measured[fireworks.NAME] = _fireworks(states, threads, home, folder, install=install)
    except fireworks.PeerUnavailable as error:
        found.skipped[fireworks.NAME] = str(error)
    return found


def codec_rows(states: States, codecs: Codecs, ours: Sequence[int]) -> list[Row]:
    """Return each codec's bits a changed cell and its time, and ``class``'s bytes (``ours``) against the smallest."""
    means = {name: mean_bits(states, measured.nbytes) for name, measured in codecs.measured.items()}
    others = {name: bits for name, bits in means.items() if name != COMMON}  # which has its row already
    rows = [Row(f"bits.{name}", f"{name}: bits a changed cell, mean", bits, "bits") for name, bits in others.items()]
    smallest = min(means, key=lambda name: means[name])
    share = mean_bits(states, ours[: len(codecs.measured[smallest].nbytes)]) / means[smallest]
    rows.append(Row("smallest", f"class, against the smallest of the others ({smallest})", share, "x", "at most", 1.0))
    common = codecs.measured[COMMON]
    for name, measured in codecs.measured.items():
        if name == COMMON or not measured.encode:
            continue
        for what in ("encode", "decode"):
            mine, theirs = getattr(measured, what), getattr(common, what)
            value = ratio(mine, theirs[: len(mine)])
            rows.append(Row(f"{what}.{name}", f"{name}: {what}, against XOR + zstd-1", value, "x"))
    return rows


def codecs_document(states: States, codecs: Codecs) -> dict[str, Any]:
    """Return everything as JSON."""
    return {
        "codecs": {
            name: {
                "bits": [round(8 * size / states.changed(step), 3) for step, size in enumerate(measured.nbytes)],
                "encode_ms": _median_ms(measured.encode),
                "decode_ms": _median_ms(measured.decode),
            }
            for name, measured in codecs.measured.items()
        },
        "skipped": codecs.skipped,
    }


def mean_bits(states: States, nbytes: Sequence[int]) -> float:
    """Return the mean over steps of the bits a changed cell."""
    return statistics.mean(8 * size / states.changed(step) for step, size in enumerate(nbytes))


def _turn(measured: Measured, peer: Peer, before: Live, after: Live, receiver: Live) -> int:
    """Time one coding and one decoding in place; ``receiver`` is left as it was. Return the bytes."""
    frames: list[Sequence[bytes]] = []
    measured.encode.append(seconds(lambda: frames.append(peer.encode(before.cells, after.cells))))
    measured.decode.append(seconds(lambda: peer.decode(frames[0], receiver.cells)))
    if not all(np.array_equal(a, b) for a, b in zip(receiver.cells, after.cells, strict=True)):
        raise AssertionError(f"{peer.name} does not give the new state")
    receiver.at = after.at
    receiver.go(before.at)
    return sum(map(len, frames[0]))


def _ranks(states: States, before: Live, after: Live) -> int:
    total = 0
    for dtype in sorted({tensor.dtype for tensor in states.tensors}):
        mine = [number for number, tensor in enumerate(states.tensors) if tensor.dtype == dtype]
        old, new = ([side.cells[number] for number in mine] for side in (before, after))
        total += ranks.coded_bytes(CELL_TYPES[dtype], old, new)
    return total


def _fireworks(states: States, threads: int, home: Path, folder: Path, *, install: bool) -> Measured:
    python = fireworks.environment(home, install=install)
    save_states(states, folder, min(_FIREWORKS_STEPS, len(states.steps)) + 1)
    steps = fireworks.measure(python, folder, threads)
    return Measured(*([step[key] for step in steps] for key in ("bytes", "encode_s", "decode_s")))


def _median_ms(values: Sequence[float]) -> float | None:
    return round(statistics.median(values) * 1e3, 3) if values else None
