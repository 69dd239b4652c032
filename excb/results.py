"""The result of an evaluation and its file: figures with all that is needed to compare or repeat them."""

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from excb.errors import UserError

SCHEMA = 1


def environment() -> dict[str, Any]:
    """Versions and hardware that figures were measured with."""
    import torch

    packages = ("torch", "torchvision", "timm", "numpy", "faiss-cpu")
    versions = {name: metadata.version(name) for name in packages if _installed(name)}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return {
        "python": platform.python_version(),
        **versions,
        "device": device,
        "cores": os.cpu_count(),
    }


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One evaluation's figures.

    Args:
        protocol: name of the protocol, such as "knn".
        figures: percentages by name, such as {"knn_top1_k20": 57.3}.
        settings: every setting of the protocol.
        checkpoint: what was evaluated.
        data: the image sets, with their hashes.
        seconds: wall time.
    """

    protocol: str
    figures: dict[str, float]
    settings: dict[str, Any]
    checkpoint: dict[str, Any]
    data: dict[str, Any]
    seconds: float
    schema: int = SCHEMA
    created: str = field(default_factory=_now)
    environment: dict[str, Any] = field(default_factory=environment)

    def to_json(self) -> str:
        """The result as indented JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)


def write_text(text: str, file: Path) -> None:
    """Write a small text file atomically.

    Raises:
        UserError: the file cannot be written.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error}") from None
