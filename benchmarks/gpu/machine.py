"""The machine, its versions and the commit, found by a process of its own: the one that asks never uses the device.

Run by `python -m benchmarks.gpu`: python -m benchmarks.gpu.machine --device cuda --json FILE
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import Places
from benchmarks.gpu.processes import ROOT, duration, last_lines, read_figures, run_limited
from excb.errors import UserError, run_program
from excb.files.atomic import write_text

MOST_WORKERS = 12  # processes that read images, as many as published speeds of one GPU are given for


def look(places: Places, limit: float) -> dict[str, Any]:
    """The facts that `main` writes within some seconds, and the commit, empty where git does not know it.

    Raises:
        UserError: the device cannot be used.
    """
    own = places.own("machine")
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    file, log = own / "figures.json", own / "log.txt"
    words = ["-m", "benchmarks.gpu.machine", "--device", places.device, "--json", str(file)]
    ended = run_limited(words, log, limit=limit)
    if ended.code != 0 or (facts := read_figures(file)) is None:
        why = next(iter(last_lines(log, lines=1)), f"no answer within {duration(limit)}")
        raise UserError(f"the device {places.device} cannot be used: {why}")
    return {**facts, "commit": commit()}


def commit() -> str:
    """The clone's commit, with a plus sign where files were changed since; empty where git does not know it."""
    asked = ["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]
    try:
        name, changed = (
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return name + ("+" if changed else "")


def describe(device: str) -> dict[str, Any]:
    """The device, the number of GPUs, cores, and versions. Raises UserError if the device cannot be used."""
    import torch

    from excb.distributed.machine import choose_device, usable_cores
    from excb.results.result import environment

    place = choose_device(device)
    torch.ones(2, device=place).sum().item()
    facts = {**environment(), "cores": usable_cores(), "gpus": 0}
    facts["workers"] = max(1, min(MOST_WORKERS, usable_cores() - 1))
    with suppress(metadata.PackageNotFoundError):
        facts["triton"] = metadata.version("triton")
    if place.type == "cuda":
        properties = torch.cuda.get_device_properties(place)
        facts |= {"gpus": torch.cuda.device_count(), "device": properties.name, "cuda": torch.version.cuda}
        facts |= {"memory": properties.total_memory, "capability": f"{properties.major}.{properties.minor}"}
        facts["driver"] = _driver()
    else:
        facts["device"] = "CPU"
    return facts


def _driver() -> str:
    """The driver's version; empty where nvidia-smi does not tell."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(answer.split(os.linesep)), "").strip()


def main() -> int:
    """Write the machine's description."""
    parser = argparse.ArgumentParser(description="describe this machine")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    write_text(json.dumps(describe(options.device), indent=2) + "\n", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(run_program("machine", main))
