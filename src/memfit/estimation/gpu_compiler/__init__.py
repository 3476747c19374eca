"""Asking XLA's GPU compiler what a training step takes on a GPU that need not be there."""
