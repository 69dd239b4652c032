"""Dense evaluation: semantic segmentation by neighbours and linear heads on frozen maps."""
