"""The demo of outer rounds: trainers that never talk to each other train one policy through a bucket.

Four processes make inner steps of GRPO, each by itself, and outer steps together, by ``registry.outer``; two workers
pull each round as a version. One trainer joins late, one is stopped for a while, one is killed and comes back. At the
end all must hold the same bits. ``python -m pulse_registry.demo.outer``, or ``make demo-outer``.
"""
