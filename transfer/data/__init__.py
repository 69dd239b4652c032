"""Labelled images for evaluation: sources, named sets, splits, batches."""
