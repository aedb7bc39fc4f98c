"""What the demo's processes have in common, loaded once, by the process that they are forks of: it takes seconds.

Whoever imports this module waits for all of it. Only multiprocessing does: `Crew` names it to its fork server.
"""

import os

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # idle threads of PyTorch sleep: it reads this once, as it is loaded

import torch

import pulse_kernels.cpu.backend  # noqa: F401
import pulse_registry.demo.sharded_worker
import pulse_registry.demo.trainer
import pulse_registry.demo.worker  # noqa: F401
from pulse_registry.demo.policy import empty_model
from pulse_registry.demo.toy import toy_config

with torch.device("meta"):  # without an operation, for which PyTorch would start threads: forks have none of them
    empty_model(toy_config(), torch.bfloat16)
