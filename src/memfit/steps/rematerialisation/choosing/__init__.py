"""Choosing what a training step keeps for its backward pass."""
