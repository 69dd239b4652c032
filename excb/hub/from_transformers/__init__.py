"""Folders and repositories of transformers: their configuration, weights and image processors, as backbones."""
