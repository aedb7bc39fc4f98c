"""A worker: each round is a version of the run, pulled as any other.

``python -m pulse_registry.demo.outer.worker NAME URL SETTINGS``.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

import pulse_registry
from pulse_registry.demo.fingerprint import fingerprint
from pulse_registry.demo.outer.events import Pulled, now, tell
from pulse_registry.demo.outer.settings import Settings


def main(name: str, url: str, settings: Settings) -> None:
    """Pull each round's version, until the last one."""
    torch.set_num_threads(1)
    part: dict[str, Any] = {}
    with pulse_registry.open(url, run=settings.run, name=name) as registry:
        for version in registry.watch(after=-1, timeout=2 * settings.patience):
            if not part:
                shapes = {tensor.name: tensor.shape for tensor in registry.layout(version.version).tensors}
                part = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
            began = time.monotonic()
            result = registry.pull(version.version, into=part)
            seconds = time.monotonic() - began
            tell(Pulled(name, result.version, result.nbytes, seconds, fingerprint(part), now()))
            if result.version == settings.last:
                registry.verify(result.version, model=part)
                return
    raise TimeoutError(f"no version for {2 * settings.patience:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Settings.from_json(sys.argv[3]))
