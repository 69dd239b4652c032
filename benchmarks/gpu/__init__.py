"""All that waits for a GPU, in one command that may be called again until all is done: `python -m benchmarks.gpu`."""
