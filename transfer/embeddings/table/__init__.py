"""Vectors with the paths of their images as a table: rows on disk or in memory, and their files."""
