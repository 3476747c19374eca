"""What to change: one file per lever, the search, the plan."""
