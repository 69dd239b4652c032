"""Images cut into views and patches: their features, their classes, and what predictions of pixels are worth."""
