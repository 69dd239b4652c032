"""A map of images: their vectors in the plane, as one page with pictures, colours, search and selection."""
