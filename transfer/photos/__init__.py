"""A folder of photographs, some of them labelled: networks compared on it, the rest predicted, what to label next."""
