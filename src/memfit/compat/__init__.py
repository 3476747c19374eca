"""Every private Keras, TensorFlow and JAX name memfit uses, one wrapper each; tests/compat checks each."""
