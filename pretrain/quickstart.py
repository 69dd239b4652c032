"""`excb-pretrain quickstart`: from images to an evaluated representation, offline, in minutes on two CPU cores."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from excb.console import Reporter, duration
from excb.hub import loading
from excb.images.image_set import Images, ImageSet
from excb.images.photographs import PHOTOGRAPHS, TEST, TRAIN, write_patches
from excb.images.scanning import scan_folder
from excb.neighbours.knn import accuracy, vote
from excb.neighbours.nearest import nearest
from excb.networks.features import Inputs, extract
from excb.networks.preprocessing import Preprocessing

from .initialise import build_model
from .loop import train
from .recipe import Recipe
from .run.remote_mirror import Place
from .run.run_folder import CURVES, REPORT, RunFolder

K, TEMPERATURE = 20, 0.07
PIXELS = Preprocessing(32, 32)  # raw pixels are compared at 32 x 32
BINS = 4  # of the colour histogram, per channel


def quickstart(recipe: Recipe, out: Path, reporter: Reporter, *, table: bool = True, profile: bool = False) -> int:
    """Write patches of photographs, pretrain on the train patches, and compare the k-NN accuracy of several features.

    Patches go into `data` in the run folder `out`, and its `report.json` gains `knn`. Returns the exit code.
    """
    start = time.monotonic()
    folder = RunFolder(Place(out), reporter.warn)  # to fail early; training locks it again
    folder.close()
    data = out / "data"
    with reporter.progress("patches of photographs", len(PHOTOGRAPHS) * (TRAIN + TEST)) as bar:
        write_patches(data, bar.advance)
    bank, queries = scan_folder(data / "train"), scan_folder(data / "test")
    preprocessing = recipe.views.preprocessing
    untrained = build_model(recipe).teacher.backbone
    estimate_batchnorm(untrained, bank, preprocessing)
    figures = {
        "pixels": knn(nn.Flatten(), PIXELS, bank, queries),
        "colour_histogram": knn(nn.Identity(), colour_histogram, bank, queries),
        "untrained": knn(untrained, preprocessing, bank, queries),
    }
    seconds_before = time.monotonic() - start
    if code := train(recipe, bank, out, reporter, table=False, profile=profile):
        return code
    after = time.monotonic()
    trained = loading.load(out)
    figures["excb"] = knn(trained, trained.transform, bank, queries)

    report: dict[str, Any] = json.loads((out / REPORT).read_text(encoding="utf-8"))
    report["knn"] = {name: round(figure, 2) for name, figure in figures.items()}
    report["training_seconds"] = report["seconds"]
    report["seconds"] = round(report["seconds"] + seconds_before + time.monotonic() - after, 1)
    folder.report(report)
    if table:
        _print_report(report, out, reporter)
    return 0


def _print_report(report: dict[str, Any], out: Path, reporter: Reporter) -> None:
    names = {
        "pixels": "raw pixels",
        "colour_histogram": "colour histogram",
        "untrained": "untrained network",
        "excb": "ExCB",
    }
    rows = [[name, f"{report['knn'][key]:.1f}"] for key, name in names.items()]
    title = f"Which of {len(PHOTOGRAPHS)} photographs is an unseen patch from? k-NN, k = {K}, top-1 in %"
    reporter.table(title, ["features", "k-NN"], rows)
    reporter.answer(f"\n{duration(report['seconds'])} in all. Curves: {out / CURVES}. Load the result:\n")
    reporter.answer(
        f'  import excb\n  backbone = excb.load("{out}")\n  features = backbone(backbone.transform(image)[None])'
    )


def knn(network: nn.Module, transform: Callable[[Image.Image], Tensor], bank: ImageSet, queries: ImageSet) -> float:
    """Top-1 accuracy of the weighted vote of K neighbours, in percent."""
    rows, query_rows = (extract(network, Inputs(images, transform), batch=256).rows for images in (bank, queries))
    labels, targets = (torch.from_numpy(images.labels) for images in (bank, queries))
    votes = vote(nearest(rows, query_rows, K), labels, ks=[K], temperatures=[TEMPERATURE], classes=len(PHOTOGRAPHS))
    return accuracy(votes[K, TEMPERATURE], targets)[0]


@torch.no_grad()
def estimate_batchnorm(network: nn.Module, images: Images, preprocessing: Preprocessing) -> None:
    """Estimate the BatchNorm statistics of an untrained network, which would score too low without them."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a cumulative average over one epoch
            module.reset_running_stats()
    network.train()
    device, generator = next(network.parameters()).device, torch.Generator().manual_seed(0)
    inputs = Inputs(images, preprocessing)
    for batch in DataLoader(inputs, batch_size=128, shuffle=True, generator=generator, collate_fn=list):
        readable = torch.stack([item for _, item in batch if isinstance(item, Tensor)])
        network(readable.to(device))
    network.eval()


def colour_histogram(image: Image.Image) -> Tensor:
    """Square roots of the counts of BINS^3 colours, compared by cosine: a baseline that sees nothing but colour."""
    pixels = torch.from_numpy(np.array(image)).long().flatten(0, 1) * BINS // 256
    return torch.bincount(pixels @ torch.tensor([BINS * BINS, BINS, 1]), minlength=BINS**3).float().sqrt()
