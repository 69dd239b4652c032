"""torchvision as an engine of the detection protocol."""
