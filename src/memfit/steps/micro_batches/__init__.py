"""One update from several smaller passes (gradient accumulation)."""
