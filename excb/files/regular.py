"""Files and folders as the system has them: special files, which are refused before they are opened, and folders."""

import errno
import os
import stat
from pathlib import Path

from excb.errors import UserError


def refuse_special(source: object) -> None:
    """Raise OSError for a file that is not a regular one: opening a named pipe would block forever."""
    if isinstance(source, (str, Path)) and not stat.S_ISREG(os.stat(source).st_mode):  # noqa: PTH116 - either kind
        raise OSError("it is not a regular file")


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
