"""vLLM: an engine that follows a run. Its live parameters become each version, in place, between two steps.

``pip install pulse-registry`` beside vLLM 0.28 or later is enough: vLLM finds the plugin by its entry point, and takes
``--weight-transfer-config '{"backend": "pulse"}'``, ``--worker-extension-cls
pulse_registry.integrations.vllm.WorkerExtension``, or both.
"""

from pulse_registry.integrations.vllm.extension import WorkerExtension
from pulse_registry.integrations.vllm.plugin import register

__all__ = ["WorkerExtension", "register"]
