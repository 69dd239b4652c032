"""Training in bf16 against fp32 on a CPU: the time of a step by network, and what runs in each precision reach.

Run from the clone: OMP_NUM_THREADS=1 python -m benchmarks.cpu_precision steps [--turns 4]
    OMP_NUM_THREADS=1 python -m benchmarks.cpu_precision runs OUT SET [SET ...] [--seeds 0 1 2] [--epochs 15]
        [--recipe photos_small] [--values section.field=value ...]
"steps" takes the steps of both precisions by turns, and prints medians of processor time. "runs" trains on SET/train in
both precisions, by turns, with the same seeds, and measures k-NN (k = 20) and logistic regression of SET/test by
SET/train. Both are for CPUs that compute in bf16. OUT keeps everything, and the same command continues where it was
stopped.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from scipy import stats

from benchmarks.choosing import run as command_seconds
from excb.errors import UserError
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.speed import build_trainer, random_batch

PRECISIONS = ("fp32", "bf16")
FIGURES = {"knn": "knn_top1_k20", "linear": "linear_top1"}
AT_128 = ("views.global_size=128", "views.local_views=0", "optim.batch=8")
NETWORKS: dict[str, tuple[str, ...]] = {  # what is shown: recipe, then values
    "conv4 (conv4_tiny)": ("conv4_tiny",),
    "conv4, wider (photos_small)": ("photos_small",),
    "the same at 32 pixels": ("photos_small", "views.global_size=32", "views.local_size=16"),
    "conv4, stem 2 (cifar10_small)": ("cifar10_small",),
    "ResNet-18, small stem": ("conv4_tiny", "model.backbone=resnet18_cifar", "optim.batch=32"),
    **{
        name: ("conv4_tiny", f"model.backbone=timm:{name}", *AT_128)
        for name in (
            *("resnet18", "resnet50", "vgg11_bn", "densenet121", "regnetx_002", "vit_small_patch16_224"),
            *("convnext_atto", "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_lite0"),
        )
    },
}


def main() -> None:
    """Take the steps, or run what is missing, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    steps = parts.add_parser("steps")
    steps.add_argument("--turns", type=int, default=4)
    runs = parts.add_parser("runs")
    runs.add_argument("out", type=Path)
    runs.add_argument("sets", type=Path, nargs="+")
    runs.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    runs.add_argument("--recipe", default="photos_small")
    runs.add_argument("--epochs", type=int, default=15)
    runs.add_argument("--values", nargs="+", default=[], help="of the recipe; with others, name another OUT")
    args = parser.parse_args()
    if args.part == "steps":
        for name, (recipe, *values) in NETWORKS.items():
            fp32, bf16 = seconds_of_steps(recipe, values, args.turns)
            print(f"{name:30s} {fp32:.3f} s in fp32, {bf16:.3f} s in bf16: {fp32 / bf16:.2f}", flush=True)
        return
    for data in args.sets:
        compare(args, data)


def seconds_of_steps(recipe: str, values: list[str], turns: int) -> list[float]:
    """The median processor time of a step in each precision."""
    steps = []
    for precision in PRECISIONS:
        chosen = apply(find_recipe(recipe), [*values, f"efficiency.precision={precision}"])
        trainer = build_trainer(chosen, torch.device("cpu"))
        steps.append((trainer, random_batch(chosen, chosen.optim.batch), list[float]()))
    for turn in range(turns + 1):
        for trainer, batch, seconds in steps:
            start = time.process_time()
            trainer.step(batch, turn)
            trainer.synchronize()
            seconds.append(time.process_time() - start)
    return [statistics.median(seconds[1:]) for *_, seconds in steps]  # the first one warms up


def compare(args: argparse.Namespace, data: Path) -> None:
    """All runs on one set, and the paired differences of their figures."""
    found: dict[str, list[dict[str, float]]] = {precision: [] for precision in PRECISIONS}
    for seed in args.seeds:
        for precision in PRECISIONS:
            found[precision].append(one_run(args, data, seed, precision))
            print(data.name, seed, precision, found[precision][-1], flush=True)
    for figure in FIGURES:
        pairs = [there[figure] - here[figure] for here, there in zip(found["fp32"], found["bf16"], strict=True)]
        half = stats.t.ppf(0.975, len(pairs) - 1) * stats.sem(pairs)
        print(f"{data.name}, {figure}: bf16 minus fp32 {statistics.mean(pairs):+.2f} ± {half:.2f}", flush=True)
    seconds = [sum(each["seconds"] for each in found[precision]) for precision in PRECISIONS]
    print(f"{data.name}: {seconds[0]:.0f} s of runs in fp32, {seconds[1]:.0f} s in bf16", flush=True)


def one_run(args: argparse.Namespace, data: Path, seed: int, precision: str) -> dict[str, float]:
    """Train and measure, unless that is done: processor time in seconds, figures in percent."""
    run = args.out / f"{data.name}-{args.recipe}-{precision}-{seed}"
    file = run.with_suffix(".json")
    if not file.exists():
        values = [f"optim.epochs={args.epochs}", f"efficiency.precision={precision}", f"run.seed={seed}"]
        values += [*args.values, "monitor.every_epochs=1000", "monitor.images=64", "efficiency.workers=0"]
        options = ["--data", str(data / "train"), "--out", str(run), "--gpus", "0"]
        figures = {"seconds": command_seconds("excb.pretrain", args.recipe, *options, *values)}
        for name, protocol in (("knn", ["knn"]), ("linear", ["linear", "--protocol", "logreg"])):
            result = run.with_suffix(f".{name}.json")
            measured = ["--ckpt", str(run), "--data", str(data), "--gpus", "0", "--quiet", "--out", str(result)]
            command_seconds("excb.transfer", *protocol, *measured)
            figures[name] = json.loads(result.read_text())["figures"][FIGURES[name]]
        file.write_text(json.dumps(figures))
    kept: dict[str, float] = json.loads(file.read_text())
    return kept


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
