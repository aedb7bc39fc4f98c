"""The kernels for weights on a GPU, beside torch's own way and dense staging; ``python -m benchmarks gpu``.

Needs torch and triton, which nothing else here does: import its modules late. The same code runs at a tiny size under
Triton's interpreter, as a test.
"""
