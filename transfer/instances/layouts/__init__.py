"""Layouts of sets with ground truth for each query, one file each."""
