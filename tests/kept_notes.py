"""A reporter for tests that keeps the notes it is given."""

from excb.console import Reporter


class KeptNotes(Reporter):
    """Prints nothing, and keeps notes in `lines`."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)
