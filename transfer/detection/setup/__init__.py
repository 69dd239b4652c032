"""The start of every engine: the settings, the samples and the job."""
