"""Figures of runs, of the method and of the paper."""
