"""Studies: recipes side by side, as one table and one figure."""
