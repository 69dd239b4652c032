"""Contents of files that were read for one purpose and are read for another: in memory, so that each is opened once."""

from threading import Lock

MOST = 2**27  # bytes of a set's files


class HeldContents:
    """Contents of some files of a set, by their numbers, at most `MOST` bytes in all.

    Processes that are forked have them, too. Those that are started anew, to which they would be copied, have none and
    read the files themselves.
    """

    def __init__(self) -> None:
        self._contents: dict[int, tuple[str, bytes]] = {}
        self._bytes = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["HeldContents"], tuple[()]]:
        return HeldContents, ()

    def __contains__(self, number: int) -> bool:
        """Whether there is a content of this file, which may have changed since."""
        return number in self._contents

    def fits(self, size: int) -> bool:
        """Whether there is room for so many bytes."""
        return self._bytes + size <= MOST

    def keep(self, number: int, stamp: str, content: bytes) -> None:
        """Hold the content of a file, where there is room for it, and the stamp that it had before it was read."""
        with self._lock:
            if number not in self._contents and self.fits(len(content)):
                self._contents[number] = stamp, content
                self._bytes += len(content)

    def get(self, number: int, stamp: str) -> bytes | None:
        """The content; None where it is not held, or the file has another stamp by now."""
        held = self._contents.get(number)
        return held[1] if held is not None and held[0] == stamp else None
