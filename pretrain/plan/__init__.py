"""What a run will take: FLOPs, memory, communication, speed."""
