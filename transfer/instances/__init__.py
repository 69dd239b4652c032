"""Instance retrieval: the same object or a copied image, by ground truth for each query (ROxford, Copydays, DISC21)."""
