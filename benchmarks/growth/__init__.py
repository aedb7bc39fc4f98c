"""``python -m benchmarks growth``: what a cost does as a run, a model, a bucket or a fleet grows."""
