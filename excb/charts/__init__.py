"""The style of figures, and TensorBoard's event files."""
