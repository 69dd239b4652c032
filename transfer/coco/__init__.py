"""Sets in COCO's format: their annotations, reading and checking them, and average precision."""
