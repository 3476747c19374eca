"""Activations computed again in the backward pass instead of kept (activation checkpointing)."""
