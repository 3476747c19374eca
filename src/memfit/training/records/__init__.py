"""Run records: what a training was, what was predicted and measured, and how it ended, as one small file each."""
