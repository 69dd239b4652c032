"""Checkpoint files: ours, exported folders and foreign layouts, read without running code and covered whole."""
