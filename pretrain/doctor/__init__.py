"""Checks of a machine and of images before a long run; they know numbers, and nothing of recipes."""
