"""Overlap of pretraining and test images: near-duplicates, and the k-NN figure with and without them."""
