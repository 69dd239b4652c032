"""Sets of images: folders, lists and tar shards; decoding; photographs for tests and demos."""
