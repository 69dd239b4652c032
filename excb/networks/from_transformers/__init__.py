"""Image encoders of the library transformers: its own classes, with the outputs that our other networks have."""
