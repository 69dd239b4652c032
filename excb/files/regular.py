"""Refuse files that are no regular ones before they are opened: a named pipe would block for ever."""

import os
import stat
from pathlib import Path


def refuse_special(source: object) -> None:
    """Raise OSError for a file that is no regular one: for a named pipe's writer one would wait for ever."""
    if isinstance(source, (str, Path)) and not stat.S_ISREG(os.stat(source).st_mode):  # noqa: PTH116 - either kind
        raise OSError("it is no regular file")
