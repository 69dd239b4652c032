"""The files of a run folder beside its checkpoints: their names, and `metrics.jsonl` read line by line."""

from pathlib import Path
from typing import Any

from excb.files import json_text
from excb.files.csv_text import read_listing

RECIPE = "recipe.json"  # recipe and images: there since the run began
METRICS = "metrics.jsonl"  # figures of steps and epochs, and alarms; the run alone writes it
REPORT = "report.json"  # there once the run is finished
WATCH_FOLDER = "watch"  # folder of `excb-eval watch`, which alone writes it
WATCH_BEST = "best.json"  # in that folder: the best checkpoint that it measured
OWNER = "owner.json"  # only at a URL: who sends the run there; gone once all of it is sent


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`; incomplete lines and lines that no run writes are skipped."""
    file = folder / METRICS
    return metrics_in(read_listing(file, "utf-8", "replace")) if file.is_file() else []


def metrics_in(text: str) -> list[dict[str, Any]]:
    """The same from the text of the file."""
    lines = []
    for each in text.splitlines():
        try:
            line = json_text.parse(each)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("kind"), str) and type(line.get("step")) is int:
            lines.append(line)
    return lines
