"""All measurements of the mirror, laid beside their limits."""

from __future__ import annotations

import os
import runpy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.link import Link, over
from benchmarks.mirror.copies import WAYS, Copy, Way, contents, copy_run
from benchmarks.mirror.egress import Followed, measure_egress
from benchmarks.mirror.news import RUN, News, follow_versions
from benchmarks.results import Row, machine, versions
from benchmarks.states import States
from pulse_registry.options import Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import open_store
from tests.support.servers import S3Bucket, S3Server

TITLE = "A mirror over a far link"
LINK = Link("1 Gbit/s, 150 ms", 1000, 75.0)
"""150 ms for a round trip."""
PREFIX = "policies"
RATE_LIMIT, TRIPS_LIMIT, MEMORY_LIMIT = 0.85, 4.0, 256.0
COSTS = runpy.run_path(str(Path(__file__).parents[2] / "deploy" / "costs.py"))
PRICES = COSTS["Prices"]()
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        keyframe_bytes: of the one keyframe that is copied.
        rounds: copies in each way; the ways take turns.
        pause_s: between two versions that are followed.
        hosts: of the far region.
    """

    keyframe_bytes: int = 1 << 30
    rounds: int = 3
    pause_s: float = 2.0
    hosts: int = 8


def measure(servers: tuple[S3Server, S3Server], states: States, size: Size, say: Say, link: Link = LINK) -> Any:
    """Measure everything over one link between two servers; return the result document."""
    home, far = servers
    load = os.getloadavg()[0]
    with over(home.endpoint, link) as endpoint:
        through = replace(home, endpoint=endpoint)
        say("a keyframe, copied by the mirror and by boto3")
        copies = copy_keyframe(home, through, far, size, say)
        say("versions, followed")
        source = home.new_bucket()
        news = follow_versions(
            states, source, S3Bucket(through, source.name), far.new_bucket(), PREFIX, pause_s=size.pause_s, seed=0
        )
    say("egress")
    followed = measure_egress(states, size.hosts)
    rows = [*_rate_rows(copies, size), *_news_rows(news, link), *_egress_rows(followed, size, len(states.steps))]
    return {
        "title": TITLE,
        "command": "python -m benchmarks.mirror",
        "machine": machine(),
        "versions": versions(),
        "load": load,
        "link": asdict(link),
        "size": asdict(size),
        "states": {"title": states.title, "seed": states.seed, "cells": states.cells, "steps": len(states.steps)},
        "copies": {way: [asdict(copy) for copy in found] for way, found in copies.items()},
        "news": [asdict(one) | {"round_trips": one.round_trips(link)} for one in news],
        "egress": asdict(followed),
        "rows": [row.document() for row in rows],
    }


def copy_keyframe(home: S3Server, through: S3Server, far: S3Server, size: Size, say: Say) -> dict[Way, list[Copy]]:
    """Copy a run of one keyframe in each way, in turn, to buckets of their own; the first copies are compared."""
    source = home.new_bucket()
    cells = np.random.default_rng(0).integers(0, 1 << 16, size.keyframe_bytes // 2, np.uint16)
    with Registry(open_store(source.url(PREFIX)), RUN, Options(push=PushOptions(dtype="keep"))) as trainer:
        trainer.push(0, {"weight": cells})
    copies: dict[Way, list[Copy]] = {way: [] for way in WAYS}
    for turn in range(size.rounds):
        for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
            bucket = far.new_bucket()
            copies[way].append(copy_run(way, S3Bucket(through, source.name), bucket, PREFIX))
            say(f"  {way}: {copies[way][-1].seconds:.1f} s")
            if turn == 0:
                there, here = contents(bucket, PREFIX), contents(source, PREFIX)
                if any(there.get(key) != found for key, found in here.items()):
                    raise RuntimeError(f"{way} has not copied the run")
            bucket.remove()
    return copies


def _rate_rows(copies: dict[Way, list[Copy]], size: Size) -> list[Row]:
    ours, theirs = copies["pulse mirror"], copies["boto3"]
    ratio = statistics.median(their.seconds / our.seconds for our, their in zip(ours, theirs, strict=True))
    peak = max(copy.peak_bytes for copy in ours) / 2**20
    return [
        Row("rate.ratio", "pulse mirror's rate, in boto3's", ratio, "x", "at least", RATE_LIMIT),
        *(
            Row(f"rate.{way}", f"{way}: a keyframe", size.keyframe_bytes / 1e6 / _seconds(copies[way]), "MB/s")
            for way in WAYS
        ),
        Row("memory", "pulse mirror: its process at its peak", peak, "MiB", "at most", MEMORY_LIMIT),
        Row("memory.boto3", "boto3: the same", max(copy.peak_bytes for copy in theirs) / 2**20, "MiB"),
    ]


def _seconds(copies: Sequence[Copy]) -> float:
    return statistics.median(copy.seconds for copy in copies)


def _news_rows(news: Sequence[News], link: Link) -> list[Row]:
    trips = sorted(one.round_trips(link) for one in news)
    return [
        Row("news.worst", "round trips to a version's record at the copy, besides its transfer: the worst", trips[-1],
            "round trips", "at most", TRIPS_LIMIT),
        Row("news.median", "the same: the median", statistics.median(trips), "round trips"),
        Row("news.seconds", "seconds to it, the median", statistics.median(one.seconds for one in news), "s"),
    ]  # fmt: skip


def _egress_rows(found: Followed, size: Size, steps: int) -> list[Row]:
    """Return measured bytes, and money: that of a fleet of `deploy/costs.py`, with what was measured beside objects.

    A mirror copies all that is stored, keyframes too; a host that follows fetches patches alone.
    """
    fleet = COSTS["Fleet"](size.hosts)
    patches_gb = fleet.versions * fleet.patch_bytes / 1e9
    beside = found.mirror.nbytes / found.stored, found.hosts.nbytes / (size.hosts * found.stored)
    told = f"{fleet.cells / 1e9:g} B cells, a version a minute, for a month"
    ratio = found.hosts.nbytes / found.mirror.nbytes
    rows = [Row("egress.ratio", f"bytes of versions: {size.hosts} hosts that read far, in a mirror's", ratio, "x")]
    for name, one, gb in (
        ("mirror", found.mirror, fleet.stored_gb * beside[0]),
        ("hosts", found.hosts, size.hosts * patches_gb * beside[1]),
    ):
        rows += [
            Row(f"egress.{name}.mb", f"{name}: bytes of {steps} versions", one.nbytes / 1e6, "MB"),
            Row(f"egress.{name}.requests", f"{name}: requests a version", one.requests / steps, ""),
            Row(f"egress.{name}.tb", f"{name}: {told}", gb / 1e3, "TB"),
            Row(f"egress.{name}.dollars", f"{name}: the same, in US dollars", gb * PRICES.region_gb, ""),
        ]
    return rows
