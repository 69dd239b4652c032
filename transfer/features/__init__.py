"""Features of frozen backbones: extraction, cache, export."""
