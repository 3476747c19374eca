"""Every private Keras, TensorFlow and JAX name memfit uses, one wrapper each; tests/compat checks each."""

from memfit.compat.versions import warn_of_unsupported_versions

# Here, and not in `import memfit`, which has no milliseconds to look for packages: whatever trains comes by.
warn_of_unsupported_versions()
