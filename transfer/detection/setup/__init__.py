"""What every engine starts from: the settings, the samples and the job."""
