"""Every margin between a predicted peak and the memory that is asked for, with what it covers."""

# What a prediction may be off but for the order of ops, as a part of the peak.
PREDICTION_ERROR = 0.03
# Of a large model too few orders of ops are recorded to tell by how much runs differ: with fewer replayed runs than
# this, or fewer recorded steps than two runs have, the deviation of runs is taken to be at least so large.
FEW_RUNS = 4
LEAST_DEVIATION_OF_FEW = 0.0375

# How many runs are replayed under each cap that is tried.
CAPPED_RUNS = 8
# Part of the memory that TensorFlow holds and no recording shows: constants of the batch in question, eager values
# (2 of 450 MiB for a MobileNetV2). It moves all that comes after it, and where gaps fall depends on that: with 445,
# 450, 454, 460 and 470 MiB 8, 5, 8, 4 and 8 of 8 runs were replayed to their end.
UNSEEN = 0.01

# For a GPU's compiler. TensorFlow's BFC allocator gives a request a whole free chunk if that is less than this
# larger, and rounds every request up to 256 bytes (bfc_allocator.cc: kMaxInternalFragmentation,
# kMinAllocationSize).
UNSPLIT_CHUNK, SMALLEST_CHUNK = 128 * 2**20, 256
# jaxlib's XLA is not the very version inside TensorFlow; how much their figures differ on a GPU was not measured.
OTHER_XLA_VERSION = 0.05

# How much more a second recording of the same step may show: threads run its ops in another order, and gaps fall
# elsewhere. What a refusal advises has to be accepted when it is tried.
REPEATED = 1.05
# Of what is free, the part that a tighter step is chosen for: the allocator rounds, and fragments are lost.
OF_FREE = 0.9
