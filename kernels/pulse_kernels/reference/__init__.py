"""The plain NumPy reference of every kernel: what every fast path is tested against."""
