"""The record of every part, in one JSON file that is replaced as a whole whenever something changes."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from excb.errors import UserError, first_line
from excb.files import json_text
from excb.files.atomic import write_text

FILE = "gpu.json"
ABOUT = "Figures of `python -m benchmarks.gpu` by part; `machine` of a part counts in `machines`, from 0."
State = Literal["waiting", "running", "cut off", "done", "failed", "skipped"]
FAILED: State = "failed"
LEFT: tuple[State, ...] = ("waiting", "running", "cut off")  # `running` stays where a call was killed


@dataclass
class Outcome:
    """The record of one part."""

    state: State = "waiting"
    starts: int = 0
    seconds: float = 0.0  # of its last start; of all of them where it continues
    command: str = ""
    date: str = ""
    machine: int | None = None
    figures: Any = None  # as its command wrote them
    result: str = ""  # the same as one line
    error: list[str] = field(default_factory=list)  # the log's end, or why it was skipped


@dataclass
class Record:
    """All parts, and the machines, versions and commits they ran with."""

    settings: dict[str, Any]  # what must not change between calls
    machines: list[dict[str, Any]] = field(default_factory=list)
    parts: dict[str, Outcome] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """The record in a folder, or a new one.

        Raises:
            UserError: its file is damaged, or of a call with other settings.
        """
        file = folder / FILE
        if not file.exists():
            return cls(settings)
        try:
            values = json_text.parse(file.read_text(encoding="utf-8"))
            parts = {str(name): Outcome(**outcome) for name, outcome in values["parts"].items()}
            record = cls(dict(values["settings"]), list(values["machines"]), parts)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"cannot read {file} ({first_line(error)}): remove it, or name another --out") from None
        if record.settings != settings:
            before = ", ".join(f"{name} {value}" for name, value in record.settings.items())
            raise UserError(f"{file} is of calls with other settings ({before}): name another --out")
        return record

    def of(self, part: str) -> Outcome:
        """The record of a part."""
        return self.parts.setdefault(part, Outcome())

    def machine(self, here: dict[str, Any]) -> int:
        """The number of a machine, which is added if it is new."""
        if here not in self.machines:
            self.machines.append(here)
        return self.machines.index(here)

    def save(self, folder: Path) -> None:
        """Replace the file. Raises UserError if it cannot be written."""
        write_text(json.dumps({"about": ABOUT, **asdict(self)}, indent=2) + "\n", folder / FILE)
