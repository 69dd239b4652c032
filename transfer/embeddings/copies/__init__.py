"""Near-duplicates among embedded images: pairs and groups, a calibrated threshold, the file of each group to keep."""
