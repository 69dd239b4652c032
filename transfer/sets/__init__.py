"""`excb-eval sets`: checkpoints on many sets of images, with mean, mean rank and tiers."""
