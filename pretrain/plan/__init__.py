"""The cost of a run: FLOPs, memory, communication, speed."""
