"""Formats of images: which files are images, by extension or first bytes, and the plugins that open them."""
