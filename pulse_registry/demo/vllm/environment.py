"""The environment of a vLLM on a CPU: quick to start, on cores that it shares, and silent about itself."""

from __future__ import annotations

from typing import Final

ON_CPU: Final = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",  # compiling takes a minute, and a compiler
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
