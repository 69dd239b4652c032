"""Whether `excb-pretrain choose` recommends what turns out best: every alternative is run and measured on test images.

Run: python -m benchmarks.choosing OUT SET [SET ...] [--networks mobilenetv2] [--minutes 10] [--full-minutes 8]
SET has train/ and test/ with one folder per class. Per set: `choose` on train/ by its labels; then each command that it
wrote, with its epochs reduced where it would take more than --full-minutes, and a teacher that still follows; then k-NN
(k = 20) and logistic regression of test/ by train/ for these runs, the networks as they are, and the references.
Processor time is that of the command and all of its processes. OUT keeps everything, and the same command continues
where it was stopped.
"""

import argparse
import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from excb.pretrain import overrides
from excb.pretrain.run.rules import followed_momentum

KINDS = {"adapt": "adapted", "distil": "distilled", "photos_small": "from random weights"}
REFERENCES = ("--untrained", "--pixels", "--histogram", "--patches")


def main() -> None:
    """Run what is missing, and print a table for every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--networks", nargs="+", default=["mobilenetv2"])
    parser.add_argument("--minutes", type=float, default=10, help="of the experiment")
    parser.add_argument(
        "--full-minutes", type=float, default=8, help="of each full run, at most, as choose estimates it"
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="the alternatives that are run")
    args = parser.parse_args()
    for data in args.sets:
        study(args, data)


def study(args: argparse.Namespace, data: Path) -> None:
    """One set: the experiment, the alternatives in full, and their figures."""
    out = args.out / data.name
    choice = out / "choose"
    if not (choice / "choose.json").exists():
        options = ["--networks", *args.networks, "--minutes", str(args.minutes), "--gpus", "0"]
        seconds = run("excb.pretrain", "choose", "--data", str(data / "train"), "--out", str(choice), *options)
        (choice / "seconds.json").write_text(json.dumps(seconds))
    chosen = json.loads((choice / "choose.json").read_text())
    print(
        f"{data.name}: {chosen['headline']}, {json.loads((choice / 'seconds.json').read_text()):.0f} CPU seconds",
        flush=True,
    )
    rows: dict[str, tuple[Any, float]] = {}
    for command in chosen["commands"]:
        words = shlex.split(command["command"])
        kind = KINDS.get(words[1])
        if kind is None or words[1] not in args.only:
            continue
        trained = out / words[1]
        if not (trained / "seconds.json").exists():
            seconds = run(
                "excb.pretrain",
                *words[1:],
                "--out",
                str(trained),
                "--gpus",
                "0",
                *fewer_epochs(args, command, words, data),
            )
            (trained / "seconds.json").write_text(json.dumps(seconds))
        rows[kind] = (
            figures(trained, data, out / f"{words[1]}.json"),
            json.loads((trained / "seconds.json").read_text()),
        )
    for number, network in enumerate(args.networks):
        crop = crop_of(chosen["commands"])
        extra = ("--resize", str(crop[0]), "--crop", str(crop[1])) if crop else ()
        found = figures(network, data, out / f"{network}.json", *extra, *(REFERENCES if number == 0 else ()))
        rows[network] = found, 0.0
    for name, ((knn, linear), seconds) in rows.items():
        print(f"  {name:24s} k-NN {said(knn)}  logistic regression {said(linear)}  {seconds:.0f} s", flush=True)


def fewer_epochs(args: argparse.Namespace, command: dict[str, Any], words: list[str], data: Path) -> list[str]:
    """The overrides that bring a run into the minutes that it may take; none where it fits."""
    share = args.full_minutes / 60 / max(command["hours"], 1e-9)
    if share >= 1:
        return []
    recipe = overrides.apply(overrides.find_recipe(words[1]), [word for word in words if "=" in word])
    fewer = f"optim.epochs={max(2, round(recipe.optim.epochs * share))}"
    if not recipe.method.needs_teacher:
        return [fewer]
    recipe = overrides.apply(recipe, [fewer])
    images = sum(path.is_file() for path in (data / "train").rglob("*"))
    steps = recipe.steps_per_epoch(images) * recipe.optim.epochs
    return [fewer, f"method.teacher_momentum={followed_momentum(recipe, steps):g}"]


def crop_of(commands: list[dict[str, Any]]) -> tuple[int, int] | None:
    """Resize and crop at which a network sees the images, from the command that adapts it; none: its own."""
    words = next((shlex.split(each["command"]) for each in commands if " adapt " in each["command"]), [])
    values = dict(word.split("=", 1) for word in words if "=" in word)
    if "views.eval_crop" not in values:
        return None
    return int(values["views.eval_resize"]), int(values["views.eval_crop"])


def figures(ckpt: Path | str, data: Path, out: Path, *options: str) -> tuple[Any, Any]:
    """k-NN and logistic regression of test images, from files where they are."""
    linear = out.with_suffix(".linear.json")
    common = ["--ckpt", str(ckpt), "--data", str(data), "--gpus", "0", *options]
    if not out.exists():
        run("excb.transfer", "knn", *common, "--out", str(out))
    if not linear.exists():
        run("excb.transfer", "linear", "--protocol", "logreg", *common, "--out", str(linear))
    return json.loads(out.read_text()), json.loads(linear.read_text())


def said(result: dict[str, Any]) -> str:
    """The metrics of a result, with intervals and references where it has them."""
    return json.dumps({name: result[name] for name in ("metrics", "intervals", "references") if result.get(name)})


def run(module: str, *words: str) -> float:
    """Run a command; the processor time of it and its processes in seconds."""
    print("running:", module, *words, flush=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", module, *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
