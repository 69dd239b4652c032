"""Processes and the machine: collectives, DDP, launching, Slurm, heartbeats, signals, workers."""
