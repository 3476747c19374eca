"""Ask for it: one file per command; each parses, calls and prints."""
