"""From a name to a loaded backbone: the catalogue, resolving, importing, loading and its self-test."""
