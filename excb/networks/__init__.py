"""Networks: building one by name, what it returns, preprocessing, and extracting features."""
