"""Clusters of a full checkpoint seen on a set of images: assignments, figures, pictures and an atlas."""
