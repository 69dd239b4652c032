"""Cost of each option of the `ssl` detection recipe: a training step from Detectron2's stock recipe to ours.

Run: python benchmarks/detection_recipe.py [--engine detectron2] [--short 800] [--batch 2] [--rois 512] [--turns 5]
           [--json FILE]
On a CPU: python benchmarks/detection_recipe.py --engine torchvision --short 256 --batch 1 --rois 64 --turns 3

Options are changed one after the other, and each row keeps those above it. Forward, backward and SGD's update are timed
on the same random images with eight boxes each. Rows take turns and the fastest step of each counts, on a CPU by its
processor time, because others may use the machine. "kept" is the memory that the forward pass keeps for the backward
pass. "peak" is the allocator's peak on a GPU.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from excb.files.atomic import write_text
from excb.transfer.detection.setup.samples import Sample
from excb.transfer.detection.setup.settings import DetectionSettings, settings_for
from excb.transfer.detection.torchvision.model import build
from excb.transfer.detection.torchvision.training import losses_of, optimizer

CLASSES, OBJECTS, TIMED = 80, 8, 3  # TIMED steps, of which the first warms up
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("stock", {}),
    ("freeze_at 2 -> 0", {"freeze_at": 0}),
    ("norm FrozenBN -> BN", {"norm": "BN"}),
    ("extra_norm", {"extra_norm": True}),
)
Losses = Callable[[], Tensor]  # a forward pass in training: the sum of the losses


def samples(settings: DetectionSettings) -> list[Sample]:
    """Random images at the recipe's largest shorter side, with boxes of many sizes whose masks are the boxes."""
    random = torch.Generator().manual_seed(0)
    height = max(settings.min_sizes)
    width = min(settings.max_size, height * 4 // 3)
    made = []
    for number in range(settings.batch):
        corners = torch.rand(OBJECTS, 2, 2, generator=random).sort(1).values
        corners[:, 1] = torch.maximum(corners[:, 1], corners[:, 0] + 0.05).clamp(max=1)
        boxes = (corners * torch.tensor([width, height])).flatten(1).round()
        masks = torch.zeros(OBJECTS, height, width, dtype=torch.bool)
        for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
            mask[top:bottom, left:right] = True
        labels = torch.randint(CLASSES, (OBJECTS,), generator=random)
        image = torch.randint(256, (3, height, width), dtype=torch.uint8, generator=random)
        made.append(Sample(image, boxes, labels, masks, number, (height, width)))
    return made


def network_of(settings: DetectionSettings, engine: str, device: torch.device) -> tuple[nn.Module, Losses]:
    """A detector with random weights on a ResNet-50, and its forward pass."""
    backbone = torchvision.models.resnet50().state_dict()
    tensors = {name: value for name, value in backbone.items() if not name.startswith("fc.")}
    batch = samples(settings)
    if engine == "torchvision":
        model = build(settings, 50, tensors, CLASSES).to(device).train()
        return model, lambda: torch.stack(list(losses_of(model, batch, device).values())).sum()
    from detectron2.utils.events import EventStorage

    from excb.transfer.detection.detectron2.model import configuration, detector, inputs

    config = configuration(settings, depth=50, classes=CLASSES, device=device)
    other = detector(config, extra_norm=settings.extra_norm, backbone=tensors).train()

    def losses() -> Tensor:
        with EventStorage():
            return torch.stack(list(other(inputs(batch, settings, training=True)).values())).sum()

    return other, losses


def bytes_kept(losses: Losses, model: nn.Module) -> int:
    """Bytes that one forward pass keeps for the backward one, beyond the model's own."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # and so no other tensor can take its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses()
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


def fastest_step(row: DetectionSettings, engine: str, device: torch.device) -> tuple[float, int, int]:
    """Seconds of a step of new weights, bytes that it keeps, and the allocator's peak on a GPU."""
    torch.manual_seed(0)
    model, losses = network_of(row, engine, device)
    moves = optimizer(model, replace(row, base_lr=1e-6))  # random weights must not diverge
    kept, seconds, peak = bytes_kept(losses, model), float("inf"), 0
    on_gpu = device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time  # others may use a CPU
    for _ in range(TIMED):
        torch.manual_seed(0)  # the same regions in every step
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
            torch.cuda.synchronize(device)
        start = clock()
        moves.zero_grad()
        losses().backward()
        moves.step()
        if on_gpu:
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device)
        seconds = min(seconds, clock() - start)
    return seconds, kept, peak


def main() -> None:
    """Print a table: time, memory, and both relative to the stock recipe."""
    parser = argparse.ArgumentParser(description="what each option of the detection recipe costs")
    parser.add_argument("--engine", choices=["detectron2", "torchvision"], default="detectron2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, default in (("short", 800), ("batch", 2), ("rois", 512), ("turns", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = {"min_sizes": (args.short,), "max_size": args.short * 4 // 3, "test_size": args.short}
    settings = settings_for("1x", "stock", options={**sizes, "batch": args.batch, "rois": args.rois})
    rows: dict[str, DetectionSettings] = {}
    for name, options in STEPS:
        rows[name] = settings = replace(settings, **options)
    measured = {name: [float("inf"), 0, 0] for name in rows}
    for _ in range(args.turns):
        for name, row in rows.items():
            seconds, *memory = fastest_step(row, args.engine, torch.device(args.device))
            measured[name] = [min(measured[name][0], seconds), *memory]
    what = f"{args.batch} images, shorter side {args.short}, {args.rois} regions each"
    print(f"torch {torch.__version__}, {args.engine}, {args.device}, {what}")
    heads = "".join(f"{head:>10}" for head in ("seconds", "/ stock", "kept, MB", "/ stock", "peak, MB"))
    print(f"{'each row keeps those above':28}{heads}")
    first_seconds, first_kept, _ = measured["stock"]
    for name, (seconds, kept, peak) in measured.items():
        times = f"{seconds:10.3f}{seconds / first_seconds:10.2f}{kept / 1e6:10.0f}{kept / first_kept:10.2f}"
        print(f"{name:28}{times}{peak / 1e6 if peak else float('nan'):10.0f}")
    if args.json:
        names = ("seconds", "kept", "peak")
        figures = {row: dict(zip(names, values, strict=True)) for row, values in measured.items()}
        write_text(json.dumps(figures, indent=2) + "\n", args.json)


if __name__ == "__main__":
    main()
