"""Retrieval protocol: images of the same class, ranked by cosine on frozen features."""
