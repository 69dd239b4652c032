"""Statistical inference: intervals, paired tests, ranks and tiers. Every function names its sampling unit."""
