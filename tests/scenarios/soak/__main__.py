"""``python -m tests.scenarios.soak --minutes 5``: a trainer, a compactor, a collector, eight workers on a real store.

Prints a JSON document with counts, and ends with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.scenarios.soak.conductor import Result, soak
from tests.scenarios.soak.plan import Plan
from tests.support import servers

TEN_MINUTES = 600.0
SKEW = {
    "trainer": TEN_MINUTES,
    "compactor": -TEN_MINUTES,
    "collector": -TEN_MINUTES,
    "worker-0": TEN_MINUTES,
    "worker-1": -TEN_MINUTES,
    "worker-4": TEN_MINUTES,
    "worker-5": -TEN_MINUTES,
}


def run(store: str, minutes: float, folder: Path, *, skew: bool = True) -> Result:
    """Run a soak on ``seaweedfs``, ``moto`` or ``files``."""
    with _place(store, folder) as (url, environment):
        plan = Plan(
            url=url,
            folder=str(folder),
            seconds=60 * minutes,
            push_every=0.7,
            keep_last=20,
            keep_every=50,
            grace_seconds=10.0,
            orphan_seconds=15.0,
            lease_seconds=15.0,
            skew_seconds=SKEW if skew else {},
        )
        return soak(plan, environment)


@contextmanager
def _place(store: str, folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    if store == "files":
        yield str(folder / "root"), {}
        return
    with getattr(servers, store)() as server:
        os.environ.update(server.environment)  # the conductor looks into the bucket as well
        yield server.new_bucket().url("soak"), server.environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--store", choices=["seaweedfs", "moto", "files"], default="seaweedfs")
    parser.add_argument("--true-clocks", action="store_true", help="without clocks that are off by ten minutes")
    parser.add_argument("--out", type=Path, help="also write the document here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pulse-soak-") as folder:
        result = run(options.store, options.minutes, Path(folder), skew=not options.true_clocks)
    text = json.dumps(result, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
