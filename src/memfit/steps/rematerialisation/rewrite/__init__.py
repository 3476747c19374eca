"""Rewriting a backward pass in TensorFlow's graph so that it needs less memory and gives the same gradients."""
