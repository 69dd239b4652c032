"""Features for evaluation: parts of every block, their export, and the cost of computing them."""
