"""Features of frozen backbones: computed by all ranks together, in shards kept in the cache and checked when read."""
