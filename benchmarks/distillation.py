"""Learning from a teacher against learning from random weights: the same network and images, in equal processor time.

Run: python -m benchmarks.distillation SET OUT --seconds 180 [--methods features simclr ...] [--seeds 3]
SET has train/ and test/ with one folder per class. A method first trains a few epochs, to learn how many fit the time.
No method gets less. Then every seed trains, and k-NN (with --linear logistic regression, too) of the test images is
measured. OUT keeps runs and results, and the same command continues where it was stopped. The teacher's own pass over
the images is not counted.
References (pixels, histogram, patches with k-means, untrained, the teacher frozen) are measured with --references.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import excb
from excb.cli import keep_freed_memory
from excb.console import Reporter
from excb.inference.estimate import Estimate
from excb.pretrain.data.hub_stream import open_training
from excb.pretrain.loop import run_training
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipe import Recipe
from excb.pretrain.study.studies import BYOL, SIMCLR

PILOT, PILOT_SECONDS = 1000, 10.0  # seed of the runs that are timed, and how long the longer one takes
MORE = 4  # its epochs at least: on a busy machine the difference of one and two may be next to nothing
CONTRAST = ("method.contrast=2",)
CLUSTERS = ("method.contrast=0",)
JITTER = ("views.jitter=0.8", "views.grey=0.2")
ALONE = "distil.features=0"
# Recipe and values of every method; the network and the sizes are those of the command line for all.
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "simclr": ("photos_small", SIMCLR),
    "excb-contrast": ("photos_small", CONTRAST),
    "simclr-jitter": ("photos_small", (*SIMCLR, *JITTER)),
    "excb-contrast-jitter": ("photos_small", (*CONTRAST, *JITTER)),
    "excb-jitter": ("photos_small", (*CLUSTERS, *JITTER)),
    "sinkhorn-jitter": ("photos_small", (*CLUSTERS, *JITTER, "method.balancing=sinkhorn")),
    # As sharp as the others, as in `excb.pretrain.study.studies`.
    "mira-jitter": ("photos_small", (*CLUSTERS, *JITTER, "method.balancing=mira", "method.teacher_temperature=0.12")),
    "centering-jitter": ("photos_small", (*CLUSTERS, *JITTER, "method.balancing=centering")),
    "byol-jitter": ("photos_small", (*BYOL, "method.contrast=0", *JITTER)),
    "features": ("distil", ()),
    "squared": ("distil", ("distil.distance=squared",)),
    "assignments": ("distil", (ALONE, "distil.assignments=1")),
    "similarities": ("distil", (ALONE, "distil.similarities=1", "distil.queue=1024")),
    # A momentum of 1 leaves s at 1/K, where B changes nothing.
    "unbalanced": ("distil", (ALONE, "distil.assignments=1", "distil.sizes_momentum=1")),
    "features+assignments": ("distil", ("distil.features=5", "distil.assignments=1")),
    "features+excb": ("photos_small", (*CONTRAST, "distil.features=5")),
    "view": ("distil", ("distil.teacher_sees=view",)),
    "features-linear": ("distil", ("distil.head=linear",)),
    "assignments-linear": ("distil", (ALONE, "distil.assignments=1", "distil.head=linear")),
    "similarities-linear": ("distil", (ALONE, "distil.similarities=1", "distil.queue=1024", "distil.head=linear")),
    "whitened": ("distil", ("distil.statistics=whitened",)),
    "as-they-are": ("distil", ("distil.statistics=none",)),
    "scratch-views": ("photos_small", (*SIMCLR, "views.local_views=0", "views.global_scale=0.25,1")),
}


def main() -> None:
    """Train and measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", nargs="+", default=["features", "simclr", "excb-contrast"], choices=METHODS)
    parser.add_argument("--teacher", default="mobilenetv2")
    parser.add_argument("--teacher-size", type=int, default=160)
    parser.add_argument("--size", type=int, default=32, help="pixels of the views")
    parser.add_argument("--seconds", type=float, default=180, help="processor time of a run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--values", nargs="*", default=[], help="overrides for all methods, such as model.options=...")
    parser.add_argument("--linear", action="store_true", help="logistic regression, too")
    parser.add_argument("--references", action="store_true")
    args = parser.parse_args()
    keep_freed_memory()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.references:
        references(args)
    for seed in args.seeds:
        for method in args.methods:
            measure(args, method, seed)
    table(args.out)


def recipe_of(args: argparse.Namespace, method: str, seed: int, epochs: int) -> Recipe:
    """The recipe of one run."""
    name, values = METHODS[method]
    side = args.size
    common = [
        *(f"views.global_size={side}", f"views.local_size={side // 2}"),
        f"views.eval_resize={side * 3 // 2 if side >= 64 else side}",  # as photos_small
        f"views.eval_crop={side * 5 // 4 if side >= 64 else side}",
        *("monitor.every_epochs=100000", "monitor.images=64", "run.save_epochs=100000"),
        *("efficiency.workers=0", "efficiency.precision=fp32", f"optim.epochs={epochs}", f"run.seed={seed}"),
    ]
    teacher = [f"distil.teachers={args.teacher}", f"distil.teacher_size={args.teacher_size}"]
    taught = name == "distil" or any(value.startswith("distil.") for value in values)
    return apply(find_recipe(name), [*common, *(teacher if taught else ()), *args.values, *values])


def run(args: argparse.Namespace, method: str, seed: int, epochs: int) -> tuple[Path, float]:
    """Train one run and return its folder and the seconds of processor time; a teacher's features are there already."""
    folder = args.out / f"{method}-{epochs}ep-seed{seed}"
    images = open_training(str(args.set / "train"), None, lambda _line: None)
    start = time.process_time()
    recipe = recipe_of(args, method, seed, epochs)
    run_training(recipe, images, folder, Reporter(quiet=True), table=False, verdict=False)
    return folder, time.process_time() - start


def known(args: argparse.Namespace) -> dict[str, Any]:
    """The figures measured so far."""
    file = args.out / "results.json"
    return json.loads(file.read_text()) if file.is_file() else {"epochs": {}, "runs": {}, "references": {}}


def note(args: argparse.Namespace, part: str, name: str, value: Any) -> dict[str, Any]:
    """Keep a measurement."""
    results = known(args)
    results[part][name] = value
    (args.out / "results.json").write_text(json.dumps(results, indent=1))
    return results


def measure(args: argparse.Namespace, method: str, seed: int) -> None:
    """Measure one method at one seed, unless that is done."""
    results = known(args)
    key = f"{method}/{args.seconds:g}"
    if f"{key}/{seed}" in results["runs"]:
        return
    if key not in results["epochs"]:
        run(args, method, PILOT, 1)  # computes a teacher's features, where they are missing
        _, start = run(args, method, PILOT + 2, 1)
        more = max(MORE, round(PILOT_SECONDS / start))
        _, seconds = run(args, method, PILOT + 1, more)
        each = (seconds - start) / (more - 1)
        results = note(args, "epochs", key, max(1, math.ceil(1 + (args.seconds - start) / each)))
    epochs = results["epochs"][key]
    folder, seconds = run(args, method, seed, epochs)
    figures = {"seconds": round(seconds, 1), "epochs": epochs}
    result = excb.evaluate(folder, "knn", data=args.set, k=[20], quiet=True)
    result.save(folder / "knn.json")
    figures |= {"knn": result.figures["knn_top1_k20"], "knn_interval": result.intervals["knn_top1_k20"]}
    if args.linear:
        linear = excb.evaluate(folder, "linear", data=args.set, protocol="logreg", quiet=True)
        linear.save(folder / "linear.json")
        figures |= {"linear": linear.figures[linear.main], "linear_interval": linear.intervals[linear.main]}
    note(args, "runs", f"{key}/{seed}", figures)
    print(method, seed, figures, flush=True)


def references(args: argparse.Namespace) -> None:
    """Measure what needs no training: the references and the frozen teacher."""
    if known(args)["references"]:
        return
    folder, _ = run(args, args.methods[0], 2000, 1)
    flags: dict[str, Any] = {"untrained": True, "pixels": True, "histogram": True, "patches": True}
    student = excb.evaluate(folder, "knn", data=args.set, k=[20], quiet=True, **flags)
    teacher = excb.load(args.teacher, img_size=args.teacher_size)
    frozen = excb.evaluate(teacher, "knn", data=args.set, k=[20], quiet=True)
    figures = {name: values["knn_top1_k20"] for name, values in student.record.references.items()}
    note(args, "references", "knn", figures | {"teacher": frozen.figures["knn_top1_k20"]})


def table(out: Path) -> None:
    """Print means over seeds with 95 % intervals."""
    results = json.loads((out / "results.json").read_text())
    print(json.dumps(results["references"]))
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, figures in results["runs"].items():
        groups.setdefault(name.rpartition("/")[0], []).append(figures)
    for name, runs in groups.items():
        cells = [name, f"{statistics.mean(each['seconds'] for each in runs):.0f} s", f"{runs[0]['epochs']} epochs"]
        there = [figure for figure in ("knn", "linear") if all(figure in each for each in runs)]
        cells += [f"{figure} {spread([each[figure] for each in runs])}" for figure in there]
        print(" | ".join(cells))


def spread(values: list[float]) -> str:
    """Mean and half width of the 95 % interval of the mean (Student's t)."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {Estimate.of_mean(values).margin():.2f} ({len(values)})"


if __name__ == "__main__":
    main()
