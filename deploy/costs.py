"""What a fleet costs in a month on S3: ``python deploy/costs.py`` prints the table of docs/how-to/estimate-costs.md.

Prices are list prices of S3 Standard in us-east-1 in US dollars, without discounts; of free tiers, only the 100 GB of
traffic to the Internet. Sources: aws.amazon.com/s3/pricing and /ec2/pricing/on-demand, as quoted in June 2026.
Put your own in: every number is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

GB: Final = 1e9
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars. ``internet_gb``: (GB up to which, price a GB), ascending."""

    stored_gb_month: float = 0.023
    put: float = 0.005 / 1000  # PUT, POST and LIST
    get: float = 0.0004 / 1000  # GET and HEAD, of what is not there too
    region_gb: float = 0.02
    internet_gb: tuple[tuple[float, float], ...] = (
        (100, 0.0),
        (10_000, 0.09),
        (50_000, 0.085),
        (150_000, 0.07),
        (float("inf"), 0.05),
    )
    replica_month: float = 53.0  # two cores, c7g.large: 0.0725 an hour


@dataclass(frozen=True, slots=True)
class Fleet:
    """One run and its workers: by default 7.6 B cells, a version a minute, 1 % changed, coder ``class``."""

    workers: int
    cells: float = 7.6e9
    changed: float = 0.01
    bits_a_change: float = 8.5
    version_s: float = 60.0
    keyframe_share: float = 0.5  # the trainer's own rule
    range_bytes: int = 16 << 20  # of a GET
    part_bytes: int = 16 << 20  # of an upload in parts
    poll_s: float = 0.5  # Registry.watch over a bucket
    replicas: int = 2
    feed_s: float = 0.25  # PULSE_POLL_SECONDS
    report_s: float = 5.0  # PULSE_REPORT_SECONDS
    probe_s: float = 1.5  # PULSE_PROBE_SECONDS
    days: int = 30

    @property
    def month_s(self) -> float:
        """Seconds of the month."""
        return float(self.days * DAY_S)

    @property
    def versions(self) -> float:
        """Versions in a month."""
        return self.month_s / self.version_s

    @property
    def patch_bytes(self) -> float:
        """Bytes of a patch."""
        return self.cells * self.changed * self.bits_a_change / 8

    @property
    def keyframe_bytes(self) -> float:
        """Bytes of a keyframe: two a cell."""
        return 2 * self.cells

    @property
    def keyframes(self) -> float:
        """Keyframes in a month: one when the patches since the last are over the share of its bytes."""
        return self.versions * self.patch_bytes / (self.keyframe_share * self.keyframe_bytes)

    @property
    def stored_gb(self) -> float:
        """GB that are stored where a month is kept."""
        return (self.versions * self.patch_bytes + self.keyframes * self.keyframe_bytes) / GB

    @property
    def pulled_gb(self) -> float:
        """GB that the workers fetch, each of them every patch."""
        return self.workers * self.versions * self.patch_bytes / GB


def trainer_requests(fleet: Fleet, prices: Prices) -> float:
    """Return what pushes cost: a patch in parts, a record, a snapshot and a hint each 64, keyframes in parts."""
    puts = fleet.versions * (_puts(fleet.patch_bytes, fleet) + 1 + 2 / 64)
    puts += fleet.keyframes * (_puts(fleet.keyframe_bytes, fleet) + 1)
    return puts * prices.put


def object_gets(fleet: Fleet, prices: Prices) -> float:
    """Return what the GETs of the patches cost; they go to the bucket in any case."""
    return fleet.workers * fleet.versions * ceil(fleet.patch_bytes / fleet.range_bytes) * prices.get


def bucket_polls(fleet: Fleet, prices: Prices) -> float:
    """Return what it costs that each worker looks for the next record in the bucket, and reads it."""
    return fleet.workers * (fleet.month_s / fleet.poll_s + fleet.versions) * prices.get


def service_requests(fleet: Fleet, prices: Prices) -> float:
    """Return what the replicas ask of the bucket: they look for records, share reports, and see whether it is there.

    To share reports, each writes its own file, lists all, and reads those of the others.
    """
    shares = fleet.month_s / fleet.report_s
    gets = fleet.month_s / fleet.feed_s + fleet.versions + fleet.month_s / fleet.probe_s + shares * (fleet.replicas - 1)
    puts = 2 * shares
    return fleet.replicas * (gets * prices.get + puts * prices.put)


def internet(gb: float, prices: Prices) -> float:
    """Return what traffic to the Internet costs, tier by tier."""
    cost, below = 0.0, 0.0
    for up_to, price in prices.internet_gb:
        cost += max(0.0, min(gb, up_to) - below) * price
        below = up_to
    return cost


def lines(fleet: Fleet, prices: Prices) -> dict[str, float]:
    """Return the month's costs by what they are for."""
    storage = fleet.stored_gb * prices.stored_gb_month
    common = storage + trainer_requests(fleet, prices) + object_gets(fleet, prices)
    polls = bucket_polls(fleet, prices)
    service = service_requests(fleet, prices) + fleet.replicas * prices.replica_month
    return {
        "storage, a month kept": storage,
        "requests of the trainer": trainer_requests(fleet, prices),
        "GETs of patches": object_gets(fleet, prices),
        "without the service: workers look into the bucket": polls,
        "with it: its requests": service_requests(fleet, prices),
        "with it: its two replicas": fleet.replicas * prices.replica_month,
        "**all, without the service, one region**": common + polls,
        "**all, with the service, one region**": common + service,
        "traffic, if all workers are in one other region": fleet.pulled_gb * prices.region_gb,
        "traffic, if all fetch over the Internet": internet(fleet.pulled_gb, prices),
        "a copy of the bucket in their region, instead": fleet.stored_gb * prices.region_gb + storage,
    }


def table(prices: Prices, workers: tuple[int, ...] = (100, 1_000)) -> str:
    """Return the costs as a table in Markdown."""
    columns = [lines(Fleet(count), prices) for count in workers]
    heads = " | ".join(f"{count:,} workers" for count in workers)
    rows = [f"| US dollars a month | {heads} |", "| --- |" + " ---: |" * len(workers)]
    rows += [f"| {name} | {' | '.join(f'{column[name]:,.0f}' for column in columns)} |" for name in columns[0]]
    return "\n".join(rows)


def _puts(nbytes: float, fleet: Fleet) -> int:
    """Return how many requests an object takes: begin, parts, end; or one."""
    parts = ceil(nbytes / fleet.part_bytes)
    return parts + 2 if parts > 1 else 1


if __name__ == "__main__":
    print(table(Prices()))
