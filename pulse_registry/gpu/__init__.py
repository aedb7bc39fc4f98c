"""Models whose tensors live on a GPU: pushed and pulled there, so that only coded groups cross to host memory.

Needs torch and triton (the extra ``gpu``); ``pulse_registry.runtime.placement`` decides where a model is worked on, and
imports this package only then. Patches are the same, byte for byte, as those of a model in host memory.
"""
