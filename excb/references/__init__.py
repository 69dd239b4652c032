"""What a figure must beat: guessing, raw pixels, colour histograms, patches, untrained networks; instance retrieval."""
