"""File formats and the one atomic writer."""
