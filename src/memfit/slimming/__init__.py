"""Other networks for the same job, compared honestly."""
