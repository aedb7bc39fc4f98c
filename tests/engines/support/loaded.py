"""What the engines of the tests have in common, loaded once, by the process that they are forks of: 13 s of a core.

Whoever imports this module waits for all of it. Only multiprocessing does: `Engine` names it to its fork server.
"""

import gc
import os

from pulse_registry.demo.vllm.environment import ON_CPU

os.environ |= ON_CPU  # vLLM and PyTorch read some of it as they are loaded

import vllm.entrypoints.llm
import vllm.lora.request
import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors
import vllm.model_executor.models.llama
import vllm.v1.engine.core
import vllm.v1.executor.multiproc_executor
import vllm.v1.worker.cpu_worker  # noqa: F401

gc.freeze()  # an engine collects garbage five times as it starts: no fork looks through what is loaded
