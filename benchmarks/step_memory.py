"""Memory of a multi-crop step on one GPU in GiB, by images and precision, with and without activation checkpointing.

Run: python -m benchmarks.step_memory [--recipes rn50_400ep vits16_300ep] [--images 32 64 128 256 512 1024]

Computed, not measured: the step runs on tensors without values, which needs no GPU (`excb-pretrain
plan` shows each figure by part, and what is not counted). K = 65,536, whole batches without accumulation; a batch of
1,024 is 1,024 images on one GPU or 128 on each of eight.
"""

import argparse
import itertools

import torch

from excb.pretrain.overrides import find_recipe
from excb.pretrain.plan.memory import step_memory


def main() -> None:
    """Print a table of GiB for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["rn50_400ep", "vits16_300ep"])
    parser.add_argument("--images", nargs="+", type=int, default=[32, 64, 128, 256, 512, 1024])
    args = parser.parse_args()
    columns = list(itertools.product(("fp32", "bf16"), (False, True)))
    titles = [precision + (", recomputing" if again else "") for precision, again in columns]
    for name in args.recipes:
        print(f"{name}, GiB of a GPU at most: computed, not measured (torch {torch.__version__})")
        print(f"{'images':>8}" + "".join(f"{title:>20}" for title in titles))
        for images in args.images:
            sizes = []
            for precision, again in columns:
                recipe = find_recipe(name).change(efficiency={"precision": precision, "checkpointing": again})
                sizes.append(step_memory(recipe, images).total / 2**30)
            print(f"{images:8,}" + "".join(f"{size:20.1f}" for size in sizes), flush=True)


if __name__ == "__main__":
    main()
