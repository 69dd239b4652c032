"""What every engine builds on: the settings, the samples, and the job that it is given."""
