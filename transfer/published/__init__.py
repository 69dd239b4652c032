"""Published figures: the registry of claims, and the checkpoints that they are about."""
