"""Layouts of sets with a class per pixel, one file each."""
