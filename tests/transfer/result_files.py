"""Results as evaluations write them, made up: of ImageNet's numbers or of images of their own."""

from pathlib import Path
from typing import Any

from excb.results.result import ResultRecord
from excb.transfer.probes.recipes import PROTOCOLS

IMAGENET = {"classes": 1000, "train": 1_281_167, "test": 50_000}
HOSTILE = "</script><img src=x onerror='window.hurt=5'>\u202egnp.|*`"


def fingerprint(word: str) -> str:
    return word.encode().hex().ljust(64, "0")[:64]


def result(
    figures: dict[str, float],
    *,
    protocol: str = "knn",
    settings: dict[str, Any] | None = None,
    name: str = "mine",
    weights: str = "weights",
    data: dict[str, int] | None = None,
    train: str = "train",
    test: str = "test",
    **checkpoint: Any,
) -> ResultRecord:
    """A result; by default of k-NN with k 20 on images that no registry knows."""
    numbers = data or {"classes": 3, "train": 9, "test": 6}
    if settings is None:
        settings = {"k": [20], "temperature": [0.07], "similarity": "cosine", "vote": "exp(s / T)"}
        settings["top5"] = "classes with a vote"
    return ResultRecord(
        protocol=protocol,
        figures=figures,
        settings=settings,
        checkpoint={
            "name": name,
            "source": f"/home/someone/{name}.pt",
            "architecture": "resnet50",
            "epoch": None,
            "preprocessing": {"resize": 256, "crop": 224},
            "weights_sha256": fingerprint(weights),
        }
        | checkpoint,
        data={
            part: {"root": f"/home/someone/photos/{part}", "images": numbers[part], "fingerprint": fingerprint(word)}
            for part, word in (("train", train), ("test", test))
        }
        | {"classes": numbers["classes"]},
        seconds=1.0,
        intervals={figure: (value - 1, value + 1) for figure, value in figures.items()},
        predictions={"file": "absent.npz", "sha256": fingerprint("predictions")},
        created="2026-11-21T00:00:00+00:00",
        environment={"torch": "2.15.0"},
    )


def linear(name: str, top1: float, *, plan: str = "resnet", **changes: Any) -> ResultRecord:
    """A result of a linear protocol on ImageNet: one head."""
    settings = PROTOCOLS[plan].settings() | {"chosen": {"lr": 0.3}, "seed": 0}
    settings |= changes.pop("settings", {})
    given = {"protocol": f"linear_{plan}", "settings": settings, "name": name, "data": IMAGENET} | changes
    return result({"linear_top1": top1, "linear_top5": 90.0}, **given)


def write(folder: Path, name: str, found: ResultRecord) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(found.to_json() + "\n", encoding="utf-8")
    return file
