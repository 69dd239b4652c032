"""The loss of the method: its equations in plain PyTorch, and fast backends that never hold rows x clusters."""
