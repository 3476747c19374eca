"""`MemoryMonitor`: memory by epoch and phase, peaks that several may measure, leaks."""
