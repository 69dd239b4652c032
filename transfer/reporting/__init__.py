"""From predictions to results: statistics, files, comparisons, pages."""
