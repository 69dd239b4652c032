"""Published figures: the registry of claims, and checking them."""
