"""Embeddings handed to other programs: FiftyOne, Lance and LanceDB, Qdrant."""
