"""Tar shards: where they are, what their headers list, and the index of it that is kept in the cache."""
