"""Features of frozen backbones: extraction and cache."""
