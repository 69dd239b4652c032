"""The result of an evaluation and its file: figures with all that is needed to compare or repeat them."""

import hashlib
import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import read_again, write_text
from excb.files.foreign import read_text
from excb.ledger import NOTHING, Ledger
from excb.results import rules
from excb.version import __version__

SCHEMA = 2
_LATER = ("claims", "references", "ledger", "inference")  # fields that older files of this schema lack


def environment() -> dict[str, Any]:
    """Versions and hardware that figures were measured with."""
    import torch

    versions = {}
    for name in ("torch", "torchvision", "timm", "numpy", "scikit-learn", "faiss-cpu", "faiss-gpu-cu12"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return {
        "excb": __version__,
        "python": platform.python_version(),
        **versions,
        "device": device,
        "cores": os.cpu_count(),
    }


def interval_text(ends: tuple[float, float] | None) -> str:
    """An interval in percent, for tables and pages; empty where there is none."""
    return "" if ends is None else "{:.1f} to {:.1f}".format(*ends)


@dataclass(frozen=True, kw_only=True)
class ResultRecord:
    """One evaluation's figures."""

    protocol: str  # name of the protocol, such as "knn"
    figures: dict[str, float]  # percentages by name, such as {"knn_top1_k20": 57.3}
    settings: dict[str, Any]  # every setting of the protocol
    checkpoint: dict[str, Any]  # what was evaluated
    data: dict[str, Any]  # the image sets, with their hashes
    seconds: float  # wall time
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # 95 % intervals of figures, in percent
    # What intervals are over and how they are made, by figure: "unit" and "method"; and why there is "none".
    inference: dict[str, dict[str, str]] = field(default_factory=dict)
    # Percent by class name, for every top-1 figure; None for classes without test images.
    per_class: dict[str, dict[str, float | None]] = field(default_factory=dict)
    # What a reader of the figures must know, such as that a setting was chosen on the test images.
    notes: list[str] = field(default_factory=list)
    # Name and sha256 of the file beside this one that holds every image's prediction.
    predictions: dict[str, str] = field(default_factory=dict)
    # What `excb-eval reproduce` found of published figures, by the claim's id: "verdict", "claimed" as printed,
    # "measured", "tolerance" and "why".
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    # What figures must beat, by reference and figure, in percent: "majority", "chance", "untrained".
    references: dict[str, dict[str, float]] = field(default_factory=dict)
    ledger: Ledger = NOTHING  # what was left out of the images, or is doubted
    schema: int = SCHEMA
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    environment: dict[str, Any] = field(default_factory=environment)

    @property
    def protocol_hash(self) -> str:
        """Equal for figures of one protocol with equal settings: 16 hexadecimal digits."""
        settings = json.loads(json.dumps(self.settings, allow_nan=False))  # keys become strings, as in the file
        canonical = json.dumps([self.protocol, settings], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def remarks(self) -> list[str]:
        """All that a reader of the figures must know: the notes, and the lines of the ledger."""
        return [*self.notes, *self.ledger_lines]

    @property
    def ledger_lines(self) -> list[str]:
        """The lines of the ledger, and of that of the run which trained the checkpoint."""
        trained_on = Ledger.from_dict(self.checkpoint.get("training_ledger") or {})
        return [*self.ledger.lines(), *trained_on.of("the images of pretraining").lines()]

    def to_json(self) -> str:
        """The result as indented JSON, without those fields of `_LATER` that are empty, as files of before."""
        values = asdict(self) | {"ledger": self.ledger.to_dict()}
        values = {name: value for name, value in values.items() if name not in _LATER or value}
        return json.dumps(values | {"protocol_hash": self.protocol_hash}, indent=2, allow_nan=False)

    def without_paths(self) -> "ResultRecord":
        """The same figures without the folders of the machine, for others to read."""
        data = {
            part: value | {"root": folder_name(str(value["root"]))}
            if isinstance(value, dict) and "root" in value
            else value
            for part, value in self.data.items()
        }
        source = folder_name(str(self.checkpoint.get("source", "")))
        return replace(self, data=data, checkpoint=self.checkpoint | {"source": source})

    def write(self, file: Path) -> None:
        """Write the file that `read` reads. Raises UserError if it cannot be written, or could not be read."""
        text = self.to_json()
        with read_again(file):
            self.from_json(text)
        write_text(text + "\n", file)

    @classmethod
    def read(cls, file: Path) -> "ResultRecord":
        """The result in a file that `excb-eval --out` wrote.

        Raises:
            UserError: it cannot be read, or as `from_json`.
        """
        try:
            return cls.from_json(read_text(file), source=str(file))
        except OSError as error:
            raise UserError(f"cannot read the result {file}: {error}") from None

    @classmethod
    def from_json(cls, text: str, *, source: str = "this text") -> "ResultRecord":
        """The result that `to_json` wrote.

        Args:
            text: the JSON.
            source: what to call it in an error, such as its file.

        Raises:
            UserError: it is not a result, one of another schema, or was changed by hand.
        """
        try:
            values = json_text.parse(text)
        except ValueError as error:
            raise UserError(f"{source} is not a result of `excb-eval` ({error})") from None
        return cls.from_values(values, source=source)

    @classmethod
    def from_values(cls, values: Any, *, source: str) -> "ResultRecord":
        """The result in parsed JSON, as `from_json`.

        Raises:
            UserError: as `from_json`.
        """
        if not isinstance(values, dict) or "schema" not in values:
            raise UserError(f"{source} is not a result of `excb-eval`: name a file that --out wrote")
        if values["schema"] != SCHEMA:
            raise UserError(f"{source} has schema {values['schema']}, not {SCHEMA}: evaluate again with this version")
        named = values.pop("protocol_hash", None)
        for name in _LATER:
            values.setdefault(name, {})
        if different := sorted(values.keys() ^ {entry.name for entry in fields(cls)}):
            odd = ", ".join(different)
            raise UserError(f"{source} lacks or adds fields of schema {SCHEMA} ({odd}): evaluate again")
        if wrong := rules.wrong_field(values):
            raise UserError(f"{source}: {wrong} is not of the form that `excb-eval` writes: evaluate again")
        try:
            # Names of files may hold bytes that are not UTF-8: half characters of one kind stand for them.
            json.dumps(values, allow_nan=False, ensure_ascii=False).encode("utf-8", "surrogateescape")
        except ValueError as error:
            raise UserError(f"{source} holds NaN or half a character ({error}): evaluate again") from None
        values["intervals"] = {name: (low, high) for name, (low, high) in values["intervals"].items()}
        result = cls(**values | {"ledger": Ledger.from_dict(values["ledger"])})
        if result.protocol_hash != named:
            raise UserError(f"{source} was changed: its settings are not those of its protocol_hash; evaluate again")
        return result


def folder_name(path: str) -> str:
    """The part of a path that names the images or the run, without the machine's; train and test keep two parts."""
    if path.startswith(("hf:", "torchvision:")):
        return path
    parts = (PureWindowsPath if "\\" in path else PurePosixPath)(path).parts
    return "/".join(parts[-2 if parts and parts[-1] in ("train", "test", "val") else -1 :])
