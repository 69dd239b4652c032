"""Exact nearest neighbours and the k-NN classifier."""
