"""Networks before and after `excb-pretrain adapt` on unlike sets, by test images that neither saw.

Run: python -m benchmarks.adapting OUT SET [SET ...] [--arms default gentle ...] [--seeds 0 1 2] [--network mobilenetv2]
SET has train/ and test/ with one folder per class. A run trains on about --passes images, repeated ones
counted. Its last epoch is measured by k-NN (k = 20) and logistic regression of test/ by train/, and so is the network
as it was; the difference is paired by image. Beside it stands the run's own verdict, which sees train/ only. OUT keeps
everything: the same command continues where it was stopped, and measures only what is missing.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from benchmarks.choosing import figures, run
from excb.inference.accuracy import difference_interval
from excb.inference.estimate import Estimate

# The values of each arm that differ from the recipe.
ARMS: dict[str, tuple[str, ...]] = {
    "default": (),
    "fast teacher": ("method.teacher_momentum=0.96",),
    "gentle": ("optim.base_lr=0.0005", "adapt.anchor=1", "adapt.anchor_end=1"),
    "bold": ("optim.base_lr=0.005",),
    "no anchor": ("adapt.anchor=0", "adapt.anchor_end=0"),
    "no contrast": ("method.contrast=0",),
    "strong colours": ("views.hue=0.1", "views.grey=0.2"),
    "weak colours": ("views.jitter=0.4",),
    "large crops": ("views.global_scale=0.5,1",),
    "averaged statistics": ("adapt.frozen_statistics=false", "method.teacher_statistics=averaged"),
}


def main() -> None:
    """Run what is missing, then print a table for every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--network", default="mobilenetv2")
    parser.add_argument("--arms", nargs="+", default=["default"], choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--passes", type=int, default=15000, help="images that a run trains on, repeated ones counted")
    parser.add_argument("--size", type=int, default=64, help="pixels of the views")
    parser.add_argument("--eval", type=int, nargs=2, default=(128, 112), metavar=("RESIZE", "CROP"))
    args = parser.parse_args()
    for seed in args.seeds:
        for arm in args.arms:
            for data in args.sets:
                measure(args, data, arm, seed)
    for data in args.sets:
        table(args, data)


def measure(args: argparse.Namespace, data: Path, arm: str, seed: int) -> None:
    """Adapt once, and measure the last epoch; the network as it was, where that is missing."""
    out = args.out / data.name
    out.mkdir(parents=True, exist_ok=True)
    resize, crop = args.eval
    figures(args.network, data, out / "start.json", "--resize", str(resize), "--crop", str(crop))
    trained = out / f"{arm.replace(' ', '-')}-{seed}"
    spent = trained / "seconds.json"
    if not spent.exists():
        images = sum(1 for path in (data / "train").rglob("*") if path.is_file())
        epochs = max(2, round(args.passes / images))
        sizes = (f"views.global_size={args.size}", f"views.eval_resize={resize}", f"views.eval_crop={crop}")
        ends = (f"optim.epochs={epochs}", f"monitor.every_epochs={epochs}", "monitor.images=1000", f"run.seed={seed}")
        machine = ("--gpus", "0", "efficiency.workers=0", "efficiency.channels_last=false")  # the fastest on one core
        words = ("adapt", args.network, "--data", str(data / "train"), "--out", str(trained), *machine)
        spent.write_text(json.dumps(run("excb.pretrain", *words, *sizes, *ends, *ARMS[arm])))
    last = max((trained / "checkpoints").glob("step-*.pt"), key=lambda path: int(path.stem.split("-")[1]))
    figures(last, data, out / f"{trained.name}.json")


def table(args: argparse.Namespace, data: Path) -> None:
    """Print every arm's gain, by seed and with the interval of its mean over seeds."""
    out = args.out / data.name
    print(f"\n{data.name}")
    for kind in ("k-NN", "logistic regression"):
        start = hits(out / "start.json", kind)
        print(f"  {kind}: {100 * start.double().mean():.1f} as it was")
        for arm in args.arms:
            runs = [out / f"{arm.replace(' ', '-')}-{seed}.json" for seed in args.seeds]
            ends = [hits(path, kind) for path in runs if path.exists()]
            if not ends:
                continue
            gains = [100 * float((end.double() - start.double()).mean()) for end in ends]
            low, high = difference_interval(start, ends[0])
            mean, seeds = Estimate.of_mean(gains), ", ".join(f"{gain:+.1f}" for gain in gains)
            gain = f"{mean.value:+.1f} ± {mean.margin():.1f}"
            print(f"    {arm:20s} {gain} (seeds {seeds}; test images {low:.1f} to {high:.1f})")
    for arm in args.arms:
        for seed in args.seeds:
            report = out / f"{arm.replace(' ', '-')}-{seed}" / "report.json"
            if report.exists():
                print(f"    {arm} {seed}: {json.loads(report.read_text())['verdict']['summary']}")


def hits(path: Path, kind: str) -> torch.Tensor:
    """[test images] whether each is right, from the predictions beside a result."""
    if kind == "k-NN":
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as held:
            return torch.from_numpy(held["knn_{}_k20"][:, 0] == held["targets"])
    with np.load(path.with_suffix(".linear.npz"), allow_pickle=False) as held:
        (name,) = (name for name in held.files if held[name].ndim == 2 and held[name].dtype == np.int64)
        return torch.from_numpy(held[name][:, 0] == held["targets"])


if __name__ == "__main__":
    main()
