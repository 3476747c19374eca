"""Reading an out-of-memory error: what ran out, who asked, what helps."""
