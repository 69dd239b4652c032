"""Data sets that a name stands for: those of torchvision and of the Hugging Face Hub."""
