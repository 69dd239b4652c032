"""Folders as the system has them, and what cannot be read in them."""

import errno
import os
from pathlib import Path

from excb.errors import UserError


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one. Raises UserError if a link's target cannot be read."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link to itself is not a folder
            raise unreadable(entry.path, error) from None
        return False


def unreadable(place: Path | str, error: OSError) -> UserError:
    """The error for a file or folder that cannot be read."""
    # Skipping it would silently leave out images, or a whole class.
    return UserError(f"cannot read {place} ({error.strerror}): allow reading it, or move it out of the images")
