"""A run on disk and in progress: folder, journal, progress, monitor, alarms, profiling, remote copy."""
