"""Many trainings: trials in processes of their own, side by side as far as memory goes."""
