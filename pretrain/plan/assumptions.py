"""What the model of a step's time assumes and leaves out, each with its reason; `plan` prints it. Needs no torch."""

# s of the CPU for an operation of eager PyTorch: its dispatch and a kernel's launch. A guess: several microseconds.
LAUNCH = 6e-6
# s that a collective takes before its bytes, in a node and across nodes: launches and hops of NCCL. Guesses.
EXCHANGE, EXCHANGE_ACROSS = 3e-5, 6e-5
NODE = 8  # GPUs of a node, as in the systems of `peaks`; each has its own share of the network
CORES = 16  # of the CPU for each GPU: DGX A100 has 128 cores for eight, DGX H100 112
DECODING = 2.3e-3  # s of a core for an image and its crops: measured on one core of a CPU (docs/performance.md)
# Launches of the views with blur and without, and of all that comes after the backward pass, for any network: counted
# on fake CUDA tensors (docs/performance.md: 37 to 66, 3 to 6, and some 80).
VIEW_LAUNCHES, UPDATE = {True: 60, False: 6}, 80
VIEW_PASSES = {True: 15, False: 3}  # times that the float32 values of views are read or written, counted likewise
# Matrices K x D that the loss head reads or writes: unit centroids of both networks, their passes, the gradient. A
# guess for the streaming loss, whose tiles of scores stay in the cache.
HEAD_PASSES = 20
# Of the student's FLOPs: the backward pass has a product for the input and one for the weights, each as large as the
# forward's.
FORWARD, BACKWARD = 1 / 3, 2 / 3

ASSUMED = (
    f"{1e6 * LAUNCH:g} us of the CPU a launch; {VIEW_LAUNCHES[False]} launches for views, {VIEW_LAUNCHES[True]} with "
    f"blur, {UPDATE} for the update",
    f"{1e6 * EXCHANGE:g} us before the bytes of a collective, {1e6 * EXCHANGE_ACROSS:g} across nodes; {NODE} GPUs a "
    "node, which share its network equally",
    f"{CORES} cores a GPU, {1e3 * DECODING:g} ms of a core an image (measured on another CPU)",
    f"views are read or written {VIEW_PASSES[True]} times with blur, {VIEW_PASSES[False]} without; centroids "
    f"{HEAD_PASSES} times, and the loss head launches what the plain loss does with few clusters",
    "all buckets of gradients but the last travel behind the backward pass, and launches and decoding are behind the "
    "GPU's work",
)
LEFT_OUT_LONGER = (
    "kernels that reach less than the peaks",
    "kernels too small to fill the GPU",
    "inputs that a kernel reads twice",
    "matrices of rows x clusters where the loss stores them (efficiency.objective=plain)",
    "collectives that slow the backward pass",
    "reading files and copying images",
    "processes that wait for the slowest",
)
LEFT_OUT_SHORTER = (
    "caches that save trips to memory",
    "fused kernels (also efficiency.compile)",
    "what powersgd saves",
    "sums made inside of switches",
)
