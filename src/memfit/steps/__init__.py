"""How one training step is computed."""
