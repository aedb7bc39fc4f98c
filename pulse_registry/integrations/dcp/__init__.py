"""torch.distributed.checkpoint over a registry: a ``Reader`` for ``dcp.load``, a ``Writer`` for ``dcp.save``.

Whoever checkpoints with torch.distributed.checkpoint publishes by passing a writer, and takes a version by passing a
reader. Needs torch, which is imported here and not by `pulse_registry`.

Examples:
    >>> import torch
    >>> import torch.distributed.checkpoint as dcp
    >>> import pulse_registry
    >>> from pulse_registry.integrations.dcp import Reader, Writer
    >>> registry = pulse_registry.open("memory://dcp-docs", run="demo")
    >>> trained = {"layer.weight": torch.ones(4, 4, dtype=torch.bfloat16)}
    >>> _ = dcp.save(trained, storage_writer=Writer(registry, step=1))
    >>> state = {"layer.weight": torch.empty(4, 4, dtype=torch.bfloat16)}
    >>> dcp.load(state, storage_reader=Reader(registry, "latest"))
    >>> torch.equal(state["layer.weight"], trained["layer.weight"])
    True
"""

from pulse_registry.integrations.dcp.reader import Reader
from pulse_registry.integrations.dcp.writer import Writer

__all__ = ["Reader", "Writer"]
