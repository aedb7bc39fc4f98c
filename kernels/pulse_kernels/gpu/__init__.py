"""Kernels for weights that live on a GPU, in Triton: a second, whole-model seam beside ``get_backend``.

A ``Backend`` takes the arrays of one group; a launch a group would cost a GPU more than the work. Here a model's
tensors of one cell width are a ``Tiling``, a table of tiles on the device, and a launch covers all of them.

Of our kernels, a push launches 10 to 18 a cell width (diff 2, sums 1, coding 6 with ``gap`` and 14 with ``class``,
scatter 1). A pull launches 9 to 13 to stage, of a large model for each batch of its groups, and one to apply. A few
sums and copies of torch's come with them. The host waits for the counts of a diff, the sums, and the sizes of what was
coded.

Nothing here is tied to CUDA: no inline assembly, no size of a warp. Every kernel compiles for AMD's GPUs too.

Importing ``pulse_kernels`` imports neither torch nor triton; the modules of this package do. Tensors must be contiguous
and stay where they are for as long as a tiling is used: their addresses are read once, so that a CUDA graph that holds
them stays valid.
"""
