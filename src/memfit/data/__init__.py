"""Feed it: image and array pipelines inside the host's memory, and the pipeline linter."""
