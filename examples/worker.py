"""A worker that follows a run: it stages the newest version while it serves, and applies it between two batches.

python examples/worker.py [ROOT]
"""

import sys

import torch

import pulse_registry

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(torch.bfloat16)

with pulse_registry.open(sys.argv[1] if len(sys.argv) > 1 else "policies", run="example") as registry:
    # The newest only: what came while this worker was busy is skipped, and it does not fall behind.
    for version in registry.watch(after=-1, latest_only=True, poll_seconds=0.1, timeout=60):
        with registry.stage(version.version, into=model) as staged:  # fetched and checked; the model may be serving
            result = staged.apply()  # the pause: only changed cells are written, in place
        print(
            f"version {result.version}: {result.changed} cells, {result.nbytes} bytes, {result.phases['apply']:.4f} s"
        )
        if version.metadata["last"]:
            break
    registry.verify(version.version, model=model)  # a full pass over the weights that serve
    print(f"verified {version.digest}")
