"""Cost of a sweep of linear heads: 50 heads in one pass against one head, and against 50 single runs.

Run: python benchmarks/linear_sweep.py [--heads 50] [--side 224] [--batch 256] [--steps 3] [--device cpu]

"backbone": images pass a torchvision ResNet-50 with random weights, then the heads take a step: the time with 50 heads
over the time with one. "features": the heads' steps alone, on features made before: the time of one pass with 50 heads
over that of 50 runs with one. Both ways take turns, and each one's fastest turn counts.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from excb.transfer.probes.heads import HeadBank


def bank(heads: int, classes: int, width: int, device: str) -> HeadBank:
    """Heads with learning rates and weight decays of their own."""
    rates = [0.01 * 1.1**number for number in range(heads)]
    return HeadBank(classes, width, lr=rates, weight_decay=[1e-4] * heads, device=device)


def seconds(*works: Callable[[], object], turns: int, device: str) -> list[float]:
    """Each work's fastest of several turns; a first one warms up."""
    fastest = [float("inf")] * len(works)
    for turn in range(turns + 1):
        for number, work in enumerate(works):
            start = time.perf_counter()
            work()
            if device != "cpu":
                torch.cuda.synchronize()
            if turn:
                fastest[number] = min(fastest[number], time.perf_counter() - start)
    return fastest


def through_backbone(heads: int, *, side: int, batch: int, classes: int, turns: int, device: str) -> list[float]:
    """Seconds per step with many heads and with one."""
    import torchvision

    network = torchvision.models.resnet50()
    network.fc = nn.Identity()
    network.eval().to(device)
    images, labels = torch.randn(batch, 3, side, side, device=device), torch.arange(batch, device=device) % classes
    many, one = (bank(count, classes, 2048, device) for count in (heads, 1))

    @torch.no_grad()
    def step(heads: HeadBank) -> None:
        heads.step(network(images), labels, whole=batch)

    return seconds(lambda: step(many), lambda: step(one), turns=turns, device=device)


def on_features(heads: int, *, batch: int, classes: int, width: int, turns: int, device: str) -> list[float]:
    """Seconds of a pass over eight batches with many heads, and of as many passes with one head each."""
    rows = torch.randn(8, batch, width, device=device)
    labels = torch.arange(batch, device=device) % classes
    many, singles = bank(heads, classes, width, device), [bank(1, classes, width, device) for _ in range(heads)]

    def together() -> None:
        for features in rows:
            many.step(features, labels, whole=batch)

    def one_by_one() -> None:
        for single in singles:
            for features in rows:
                single.step(features, labels, whole=batch)

    return seconds(together, one_by_one, turns=turns, device=device)


def main() -> None:
    """Print a table of seconds and ratios."""
    parser = argparse.ArgumentParser(description="cost of a sweep of linear heads")
    parser.add_argument("--heads", type=int, default=50)
    parser.add_argument("--side", type=int, default=224, help="of the images, pixels")
    parser.add_argument("--batch", type=int, default=256, help="images per step through the backbone")
    parser.add_argument("--classes", type=int, default=1000, help="with the backbone; on features 100")
    parser.add_argument("--steps", type=int, default=3, help="turns of which the fastest counts")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    shared = {"turns": args.steps, "device": args.device}
    sizes = {"side": args.side, "batch": args.batch, "classes": args.classes}
    many, one = through_backbone(args.heads, **sizes, **shared)
    together, singly = on_features(args.heads, batch=256, classes=100, width=1280, **shared)
    where = f"{torch.get_num_threads()} thread(s)" if args.device == "cpu" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {args.device}, {where}")
    print(f"backbone, {args.heads} heads against 1:             {many:8.3f} s {one:8.3f} s  ratio {many / one:.2f}")
    print(
        f"features, {args.heads} heads against {args.heads} single runs: {together:8.3f} s {singly:8.3f} s  "
        f"ratio {together / singly:.2f}"
    )


if __name__ == "__main__":
    main()
