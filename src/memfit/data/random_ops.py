"""TensorFlow's ops that draw random numbers, and those that call Python."""

# Their state lies in their kernel: a new iteration starts from the seed again, if there is one.
RANDOM_OPS = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "TruncatedNormal",
    }
)
PYTHON_OPS = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
