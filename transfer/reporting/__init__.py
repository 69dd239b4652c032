"""From predictions to results: scores of every image, references, files."""
