"""Every margin between a predicted peak and the memory that is asked for.

| margin | covers | measured on |
|---|---|---|
| `PREDICTION_ERROR` | what a predicted peak is off | 40 trainings: 2.3% in the median |
| `CAPPED_RUNS` | the allocator's gaps: so many replayed runs complete | 119 runs under caps |
| `RecordedSource.doubt` | a step that XLA did not compile for the batch asked about | the batch that ran |
| `GPU.workspace_guess` | kernel workspace, where a CPU's recording stands in for a GPU | a guess, shown as one |
| `UNSPLIT_CHUNK`, `SMALLEST_CHUNK` | TensorFlow's allocator around a compiled step | its source |
| `ROUNDED` | chunks larger than the variables in them, where others' are counted | five networks: 2 to 10% |
| `OTHER_XLA_VERSION` | a compiler that is not the very one inside TensorFlow | a guess, shown as one |

What the first two change is in docs/internals/ablations.md, with the margins that were removed.
"""

# As a part of the peak.
PREDICTION_ERROR = 0.05
# Each is replayed for every cap that is tried.
CAPPED_RUNS = 8

# A request gets a whole free chunk if that is less than this larger, and at least the smallest (bfc_allocator.cc:
# kMaxInternalFragmentation, kMinAllocationSize).
UNSPLIT_CHUNK, SMALLEST_CHUNK = 128 * 2**20, 256
# As a part of the temporaries.
OTHER_XLA_VERSION = 0.05

# Of a model's variables, what an arena's chunks take beyond their bytes: measured 2 to 10% for five networks.
ROUNDED = 0.1
# How much more a second recording of the same step may show: threads run its ops in another order, and gaps fall
# elsewhere. What a refusal advises has to be accepted when it is tried.
REPEATED = 1.05
