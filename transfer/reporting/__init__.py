"""From predictions to results: scores, files, comparisons, pages."""
