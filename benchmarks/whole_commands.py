"""Whole commands as a user waits for them: CPU seconds and memory, cold and warm, as the files grow in number.

Run: python -m benchmarks.whole_commands SET OUT [--files 1000 10000 60000] [--commands knn embed] [--before COPY]
SET holds train/ and test/ with class folders; a sixth of the files are taken from test/. OUT gets links to them, and a
cache for each version and number, which a cold command finds empty. COPY is another version's clone, run in turns.
For `dense` every image has a mask, its class everywhere. A pretraining is one epoch, with its curves and verdict.
How often files are opened, hashed and passed through the network is counted by tests/transfer/test_counts.py.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

HERE = Path(__file__).resolve().parents[1]
CKPT = "conv4_photos"
TEST_SHARE = 6
ON_DATA = ("--ckpt", CKPT, "--quiet")
# By name: a module, and its arguments with the folder of a set and that of results.
COMMANDS: dict[str, tuple[str, ...]] = {
    "knn": ("excb.transfer", "knn", *ON_DATA, "--data", "{data}", "--out", "{out}/knn.json"),
    "linear": ("excb.transfer", "linear", *ON_DATA, "--data", "{data}", "--out", "{out}/linear.json"),
    "embed": ("excb.transfer", "embed", *ON_DATA, "--data", "{data}/train", "--out", "{out}/embed.npz"),
    "search": ("excb.transfer", "search", *ON_DATA, "--data", "{data}/train", "--query", "{query}"),
    "near-duplicates": ("excb.transfer", "search", *ON_DATA, "--data", "{data}/train", "--near-duplicates"),
    "dense": ("excb.transfer", "dense", *ON_DATA, "--data", "{masked}", "--size", "32", "--out", "{out}/dense.json"),
    "doctor": ("excb.pretrain", "doctor", "--data", "{data}/train", "--quiet"),
    "choose": ("excb.pretrain", "choose", "--no-pilots", "--data", "{data}/train", "--out", "{out}/choose", "--quiet"),
    "pretraining": ("excb.pretrain", "conv4_tiny", "--data", "{data}/train", "--out", "{out}/run", "optim.epochs=1"),
}
FIXED: dict[str, tuple[str, ...]] = {  # commands without images
    "list": ("excb.zoo", "list"),
    "show": ("excb.zoo", "show", CKPT),
    "help": ("excb.transfer", "knn", "--help"),
}


class Cost(NamedTuple):
    """The cost of one command with its processes."""

    seconds: float  # of CPU time
    memory: float  # MiB at most, of its largest process


def main() -> None:
    """Measure, and print a line for each command and number of files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--files", type=int, nargs="+", default=[1000, 10_000, 60_000])
    parser.add_argument("--commands", nargs="+", default=[*FIXED, *COMMANDS], choices=[*FIXED, *COMMANDS])
    parser.add_argument("--before", type=Path, help="the clone of another version")
    parser.add_argument("--turns", type=int, default=2, help="warm runs of each")
    args = parser.parse_args()
    versions = {"now": HERE} | ({"before": args.before.resolve()} if args.before else {})
    for command in args.commands:
        earlier = dict[str, tuple[int, float]]()
        for files in [0] if command in FIXED else args.files:
            place = args.out.resolve() / str(files)
            if files:
                linked_set(args.set, place / "data", files)
            costs = measured(command, place, versions, args.turns)
            for version, (cold, warm) in costs.items():
                least = min(cost.seconds for cost in warm)
                print(line(f"{command} {files or ''} {version}", cold, warm), end="")
                if version in earlier:
                    number, seconds = earlier[version]
                    print(f", exponent {math.log(least / seconds) / math.log(files / number):.2f}", end="")
                print(flush=True)
                earlier[version] = files, least


def linked_set(source: Path, target: Path, files: int) -> None:
    """Link the first files of every class, as many of train and test as make `files` in all."""
    if target.exists():
        return
    for split, count in (("train", files - files // TEST_SHARE), ("test", files // TEST_SHARE)):
        classes = sorted(folder for folder in (source / split).iterdir() if folder.is_dir())
        for folder in classes:
            (target / split / folder.name).mkdir(parents=True)
            for file in sorted(folder.iterdir())[: count // len(classes)]:
                os.link(file, target / split / folder.name / file.name)


def masked_set(source: Path, target: Path) -> None:
    """Link the same files with masks beside them, in the layout `folders` of dense evaluation."""
    if target.exists():
        return
    classes = sorted(folder.name for folder in (source / "train").iterdir())
    for split in ("train", "test"):
        for value, name in enumerate(classes):
            images, masks = (target / split / kind / name for kind in ("images", "masks"))
            images.mkdir(parents=True)
            masks.mkdir(parents=True)
            for file in (source / split / name).iterdir():
                with Image.open(file) as image:
                    Image.new("L", image.size, value).save(masks / f"{file.stem}.png")
                os.link(file, images / file.name)
    (target / "classes.txt").write_text("\n".join(classes))


def measured(command: str, place: Path, versions: dict[str, Path], turns: int) -> dict[str, tuple[Cost, list[Cost]]]:
    """The cold and the warm costs by version, which take turns."""
    costs = dict[str, tuple[Cost, list[Cost]]]()
    for turn in range(turns + 1):
        for version, clone in versions.items():
            cache = place / f"cache-{version}-{command}"
            if turn == 0:
                shutil.rmtree(cache, ignore_errors=True)
                costs[version] = cost_of(command, place, clone, cache), []
            else:
                costs[version][1].append(cost_of(command, place, clone, cache))
    return costs


def cost_of(command: str, place: Path, clone: Path, cache: Path) -> Cost:
    """Run a command once."""
    module, *words = (COMMANDS | FIXED)[command]
    place.mkdir(parents=True, exist_ok=True)
    query = next((place / "data" / "test").glob("*/*"), None)
    masked = place / "masked"
    if any("{masked}" in word for word in words):
        masked_set(place / "data", masked)
    shutil.rmtree(place / "run", ignore_errors=True)  # else a run that is finished would do nothing
    filled = [word.format(data=place / "data", masked=masked, out=place, query=query) for word in words]
    environment = os.environ | {"EXCB_CACHE": str(cache), "PYTHONPATH": str(clone)}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *filled], cwd=clone, env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: the doctor has doubts
        raise SystemExit(f"{command} fails in {clone}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def line(name: str, cold: Cost, warm: Sequence[Cost]) -> str:
    """Costs for people."""
    seconds, memory = sorted(cost.seconds for cost in warm), max(cost.memory for cost in warm)
    return (
        f"{name}: cold {cold.seconds:.1f} s, {cold.memory:,.0f} MiB; "
        f"warm {seconds[0]:.1f} to {seconds[-1]:.1f} s, {memory:,.0f} MiB"
    )


if __name__ == "__main__":
    main()
