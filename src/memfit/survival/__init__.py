"""`memfit run`: a script in a process of its own, with checkpoints, started again where it was when it dies."""
