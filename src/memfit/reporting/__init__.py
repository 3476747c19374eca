"""Show it: console tables, HTML, JSON."""
