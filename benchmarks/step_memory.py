"""Memory of a multi-crop step on one GPU in GiB, by images and precision, with and without activation checkpointing.

Run: python -m benchmarks.step_memory [--recipes rn50_400ep vits16_300ep] [--images 32 64 128 256 512 1024]
     [--device cuda] [--json FILE]

Computed, not measured, without --device: the step runs on tensors without values, which needs no GPU (`excb-pretrain
plan` shows each figure by part, and what is not counted). K = 65,536, whole batches without accumulation; a batch of
1,024 is 1,024 images on one GPU or 128 on each of eight. --device cuda takes two steps there for every figure that
should fit, and prints the most that torch allocated beside it; on a CPU torch does not know.
"""

import argparse
import gc
import itertools
import json
from pathlib import Path
from typing import Any

import torch

from excb.distributed.machine import choose_device
from excb.files.atomic import write_text
from excb.pretrain.overrides import find_recipe
from excb.pretrain.plan.memory import step_memory
from excb.pretrain.plan.speed import measure_step
from excb.pretrain.recipe import Recipe


def measured(recipe: Recipe, images: int, computed: int, device: torch.device) -> int | None:
    """Bytes that torch allocated at most in two steps; None on a CPU, and where they do not fit."""
    if device.type == "cuda" and computed > torch.cuda.get_device_properties(device).total_memory:
        return None
    gc.collect()  # what the last one held, which its error may have kept alive
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        peak: int | None = measure_step(recipe, images, device, seconds=0.0).peak_memory
    except torch.OutOfMemoryError:
        return None
    return peak


def main() -> None:
    """Print a table of GiB for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["rn50_400ep", "vits16_300ep"])
    parser.add_argument("--images", nargs="+", type=int, default=[32, 64, 128, 256, 512, 1024])
    parser.add_argument("--device", help="take the steps there as well, and measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    args = parser.parse_args()
    device = choose_device(args.device) if args.device else None
    figures: dict[str, list[dict[str, Any]]] = {}
    columns = list(itertools.product(("fp32", "bf16"), (False, True)))
    titles = [precision + (", recomputing" if again else "") for precision, again in columns]
    for name in args.recipes:
        figures[name] = []
        how = "computed, not measured" if device is None else "computed / measured"
        print(f"{name}, GiB of a GPU at most: {how} (torch {torch.__version__})")
        print(f"{'images':>8}" + "".join(f"{title:>20}" for title in titles))
        for images in args.images:
            sizes = []
            for precision, again in columns:
                recipe = find_recipe(name).change(efficiency={"precision": precision, "checkpointing": again})
                computed, taken = step_memory(recipe, images).total, None
                text = f"{computed / 2**30:.1f}"
                if device is not None:
                    taken = measured(recipe.change(efficiency={"device": str(device)}), images, computed, device)
                    text += " / -" if taken is None else f" / {taken / 2**30:.1f}"
                sizes.append(text)
                cell = {"images": images, "precision": precision, "checkpointing": again}
                figures[name].append(cell | {"computed": computed, "measured": taken})
            print(f"{images:8,}" + "".join(f"{size:>20}" for size in sizes), flush=True)
    if args.json:
        write_text(json.dumps(figures, indent=2) + "\n", args.json)


if __name__ == "__main__":
    main()
