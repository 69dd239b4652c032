"""Learning from frozen teachers: their features, and the objectives that compare a student's with them."""
