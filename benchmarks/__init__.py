"""Benchmarks: times as ratios to NumPy copies and to XOR + zstd-1, bytes, memory. See docs/benchmarks.md."""
