"""The writing side of the zoo: exporting and publishing checkpoints (`excb-zoo`)."""
