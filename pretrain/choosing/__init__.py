"""The best use of some images, found out by trying on a sample of them."""
