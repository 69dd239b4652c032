"""Networks: building one by name, its outputs, preprocessing, and extracting features."""
