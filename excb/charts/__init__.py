"""How figures look, and TensorBoard's event files."""
