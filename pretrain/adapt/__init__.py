"""Continuing from a trained backbone: which of its layers learn when, and what keeps it near its start."""
