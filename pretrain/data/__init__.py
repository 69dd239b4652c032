"""Training images: batches, views, augmentation, prefetching and streams."""
