"""Embeddings of any images, labelled or not: files of vectors, search, near-duplicates."""
