"""The version of this package; it stands here alone, so that no module imports the facade for it."""

__version__ = "0.2.0"
