"""What is there: sizes, devices, host memory, the arena, isolated processes."""
