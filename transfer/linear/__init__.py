"""Linear probing: recipes, heads, selection, logistic regression."""
