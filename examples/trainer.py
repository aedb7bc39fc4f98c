"""A training loop that publishes every step. Start examples/worker.py beside it, before or after.

python examples/trainer.py [ROOT]
"""

import sys

import torch

import pulse_registry

STEPS = 10
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))  # FP32 masters
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

with pulse_registry.open(sys.argv[1] if len(sys.argv) > 1 else "policies", run="example") as registry:
    for step in range(STEPS):
        inputs = torch.randn(32, 64)
        loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Returns after the diff: the next step may change the weights while this version is stored.
        push = registry.push(step, model, metadata={"loss": loss.item(), "last": step == STEPS - 1}, wait=False)
    print(push.result())
