"""A recipe on a folder of small labelled photographs, several seeds: k-NN of ExCB, the untrained network, raw pixels.

Run: python benchmarks/small_images.py DIR [--seeds 0 1 2] [--rename TEST=TRAIN] [section.field=value ...]
DIR holds train/ and test/. Runs are kept in runs/small_images; started again, it resumes.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from excb.console import Reporter, duration
from excb.distributed.machine import choose_device
from excb.hub.backbone import Backbone, Entry
from excb.hub.loading import load
from excb.images.scanning import scan_folder
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.initialise import build_model
from excb.pretrain.loop import train
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.quickstart import PIXELS, estimate_batchnorm
from excb.transfer.data.classes import labelled, with_classes_of
from excb.transfer.knn import protocol
from excb.transfer.task import Task

K = 20
RUNS = Path("runs/small_images")


class Pixels(nn.Flatten):
    """Raw pixels as features."""

    num_features = 3 * PIXELS.crop**2


def main() -> None:
    """Print a table with one row a seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--recipe", default="rn18_small")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rename", default="", help="TEST=TRAIN")
    args = parser.parse_intermixed_args()
    reporter, quiet = Reporter(), Reporter(quiet=True)
    bank = labelled(args.data / "train")
    rename = dict([args.rename.split("=")]) if args.rename else {}
    queries = with_classes_of(scan_folder(args.data / "test"), bank, rename=rename)

    def top1(network: nn.Module, preprocessing: Preprocessing) -> float:
        backbone = Backbone(network, preprocessing, Entry("", Architecture("")))
        device = choose_device("auto")
        task = Task(backbone.to(device).eval(), preprocessing, bank, queries, device, 64, 2)
        figures: dict[str, float] = protocol.evaluate(task, quiet, ks=[K], table=False).figures
        return figures[f"knn_top1_k{K}"]

    rows = []
    for seed in args.seeds:
        recipe = apply(find_recipe(args.recipe), [*args.overrides, f"run.seed={seed}"])
        untrained = build_model(recipe).teacher.backbone
        estimate_batchnorm(untrained, bank, recipe.views.preprocessing)
        before = top1(untrained, recipe.views.preprocessing)
        out = RUNS / f"{args.recipe}-{seed}"
        train(recipe, scan_folder(args.data / "train"), out, reporter, table=False)
        trained = load(out)
        seconds = float(torch.load(trained.entry.source, weights_only=True)["seconds"])
        rows.append([str(seed), f"{before:.1f}", f"{top1(trained.network, trained.transform):.1f}", duration(seconds)])
    title = f"k-NN (k = {K}), {len(bank)} train and {len(queries)} test images; raw pixels {top1(Pixels(), PIXELS):.1f}"
    reporter.table(title, ["seed", "untrained", "ExCB", "training"], rows)


if __name__ == "__main__":
    main()
