"""Refuse special files before they are opened."""

import os
import stat
from pathlib import Path


def refuse_special(source: object) -> None:
    """Raise OSError for a file that is not a regular one: opening a named pipe would block forever."""
    if isinstance(source, (str, Path)) and not stat.S_ISREG(os.stat(source).st_mode):  # noqa: PTH116 - either kind
        raise OSError("it is not a regular file")
