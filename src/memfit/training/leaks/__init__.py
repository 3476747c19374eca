"""`memfit.watch`: memory that grows steadily, what holds it, and the line that lets it grow."""
