"""Checkpoints side by side: one table of figures with ranks and tiers, as text, page and picture."""
