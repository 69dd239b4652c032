"""The objects that the loop trains: a run started or restored, its state for checkpoints, and the end of an epoch."""
