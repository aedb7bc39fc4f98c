"""The kernels of the CPU: numba loops that release the GIL, compiled once and cached on disk."""
