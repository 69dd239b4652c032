"""Heads on frozen features: training them together, and choosing among them on images that they never saw."""
