"""What a figure must beat: guessing, raw pixels, colour histograms, untrained networks; and retrieval of instances."""
