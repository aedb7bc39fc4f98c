"""Benchmarks of outer rounds: what they cost and what is learnt in them, beside DiLoCo and what others send."""
