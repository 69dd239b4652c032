"""References that a figure must beat: chance, raw pixels, colour histograms, patches, untrained networks."""
