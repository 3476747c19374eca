"""Under guard: a step that runs out of memory is taken back, computed in a tighter way, and done again."""
