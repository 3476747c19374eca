"""What it takes: record a step's timeline, scale it, predict the peak and explain it."""
