"""What evaluation does with features: parts of every block, their export and what computing them takes."""
