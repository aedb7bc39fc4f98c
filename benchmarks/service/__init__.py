"""Load on the service: requests a second, waiters woken by a push, a soak. ``python -m benchmarks.service``."""
