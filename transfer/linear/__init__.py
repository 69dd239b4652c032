"""Linear probing: the protocols of the field, and logistic regression."""
