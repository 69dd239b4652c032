"""A whole training step at 224 + 96 pixels, ours against a plain one: images/s, memory, FLOP utilisation, its parts.

Run from the clone: python -m benchmarks.whole_step [--recipes rn50_100ep vits16_300ep] [--batch 256] [--workers 8]
    [--data DIR] [--steps 20] [--device cuda] [--json FILE] [section.field=value ...]      values are for both ways
On a CPU, with small networks and views: python -m benchmarks.whole_step --device cpu --tiny

"plain" (`benchmarks.plain_step`) is the same mathematics as published codes write it: eager, with the same autocast to
bfloat16 on a GPU; ours is compiled there as well. Both have the same networks, optimizer and first batch: the losses of
the first step are printed, and agree where model.drop_path=0 (its random choices differ). "alone" gives a way one batch
again and again, from pinned memory; the fastest step counts; "with loader" is the rate while as many workers as stated
read photographs, or the images below DIR. FLOPs are counted without what is computed a second time, as a share of the
rate of a product of two square matrices in this run.
"""

import argparse
import gc
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.input_pipeline import write_photographs
from benchmarks.plain_step import Plain, plain_batches
from excb.distributed.machine import choose_device
from excb.files.atomic import write_text
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.pretrain.data.batch import ViewBatch
from excb.pretrain.data.loader import loader
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.flops import count
from excb.pretrain.plan.speed import build_trainer, random_batch
from excb.pretrain.recipe import Recipe

WARM_UP, PROFILED, OPERATIONS = 3, 3, 10  # steps, steps, rows
PEAK = {"cuda": (8192, torch.bfloat16), "cpu": (1024, torch.float32)}  # side and type of the matrices of the peak
TINY = (
    *("method.clusters=1024", "method.hidden=128", "method.width=64"),
    *("views.global_size=64", "views.local_size=32", "views.eval_resize=64", "views.eval_crop=64"),
)
TINY_BACKBONES = {"resnet50": "resnet18", "vit_small": "vit_tiny"}

Step = Callable[[object, int], float]  # a batch and the step's number -> its loss


def our_batches(recipe: Recipe, images: ImageSet, workers: int, device: torch.device) -> Iterator[object]:
    """Batches without end."""
    return iter(loader(images, recipe, start=0, stop=10**6, workers=workers, pin_memory=device.type == "cuda"))


@dataclass(frozen=True)
class Figures:
    """The figures of one way."""

    loss: float  # of the first step
    alone: float  # images/s
    memory: float | None  # GiB of tensors at most; on a CPU not known
    with_loader: float  # images/s
    operations: list[tuple[str, float]]  # share of the time of each, the longest first


def synchronise(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of_steps(step: Step, batches: Iterable[object], device: torch.device, steps: int) -> list[float]:
    """Seconds from one step's end to the next one's, for `steps` steps after some that warm up."""
    ends = []
    for number, batch in enumerate(itertools.islice(batches, WARM_UP + steps)):
        step(batch, number)
        synchronise(device)
        ends.append(time.perf_counter())
    return [end - start for start, end in itertools.pairwise(ends[WARM_UP - 1 :])]


def longest(step: Step, batch: object, device: torch.device) -> list[tuple[str, float]]:
    """The operations that take longest, on a GPU its kernels."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        for number in range(PROFILED):
            step(batch, number)
        synchronise(device)
    kind = "CUDA" if on_gpu else "CPU"
    events = [event for event in profiler.key_averages() if event.device_type.name == kind]
    times = {event.key: event.self_device_time_total if on_gpu else event.self_cpu_time_total for event in events}
    total = sum(times.values()) or 1.0
    return [(name, taken / total) for name, taken in sorted(times.items(), key=lambda item: -item[1])[:OPERATIONS]]


def measure(step: Step, batch: object, batches: Iterator[object], recipe: Recipe, steps: int) -> Figures:
    """Measure one way, alone and with its loader."""
    device, images = torch.device(recipe.efficiency.device), recipe.optim.batch
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    loss = step(batch, 0)
    alone = images / min(seconds_of_steps(step, itertools.repeat(batch), device, steps))
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else None
    operations = longest(step, batch, device)
    with_loader = images / statistics.mean(seconds_of_steps(step, batches, device, steps))
    return Figures(loss, alone, memory, with_loader, operations)


def matrix_peak(device: torch.device) -> float:
    """FLOP/s of a product of two square matrices: the fastest of twelve."""
    side, dtype = PEAK[device.type]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    fastest = float("inf")
    for _ in range(12):
        synchronise(device)
        start = time.perf_counter()
        a @ b
        synchronise(device)
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * side**3 / fastest


def our_figures(recipe: Recipe, images: ImageSet, workers: int, steps: int) -> tuple[Figures, list[torch.Tensor]]:
    """Measure ours; also the views of its batch, for the plain way."""
    device, batch = torch.device(recipe.efficiency.device), random_batch(recipe, recipe.optim.batch)
    trainer = build_trainer(recipe, device)
    parts = (batch.global_crops, batch.global_parameters), (batch.local_crops, batch.local_parameters)
    views = [view.cpu() for part in parts if (made := trainer.views(*part)) is not None for view in made]

    def step(batch: object, number: int) -> float:
        assert isinstance(batch, ViewBatch)
        return float(trainer.step(batch, number)[0].loss)

    if device.type == "cuda":
        batch, views = batch.pin_memory(), [view.pin_memory() for view in views]
    return measure(step, batch, our_batches(recipe, images, workers, device), recipe, steps), views


def compare(recipe: Recipe, images: ImageSet, workers: int, steps: int) -> dict[str, Figures]:
    """Measure both ways, one after the other, so that neither one's memory counts as the other's."""
    ours, views = our_figures(recipe, images, workers, steps)
    gc.collect()
    device = torch.device(recipe.efficiency.device)
    batches = plain_batches(recipe, images, workers, device)
    return {"ours": ours, "plain": measure(Plain(recipe, device).step, views, batches, recipe, steps)}


def repeated(images: ImageSet, least: int) -> ImageSet:
    """The set, again and again, until it is as large as a few batches."""
    return ImageSet(images.root, list(images.paths) * -(-least // len(images)))


def main() -> None:
    """Print one table per recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    parser.add_argument("--recipes", nargs="+", default=["rn50_100ep", "vits16_300ep"])
    parser.add_argument("--batch", type=int, help="images per step (default: 256; 8 with --tiny)")
    parser.add_argument("--workers", type=int, default=8, help="processes that read, for either way")
    parser.add_argument("--data", type=Path, help="images (default: photographs of scikit-image, 500 x 375)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    parser.add_argument("--tiny", action="store_true", help="small networks and views, two workers, two steps")
    args = parser.parse_intermixed_args()
    device = choose_device(args.device)
    workers, steps = (min(2, args.workers), 2) if args.tiny else (args.workers, args.steps)
    size = args.batch or (8 if args.tiny else 256)
    peak = matrix_peak(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    side, dtype = PEAK[device.type]
    product = f"{peak / 1e12:.3g} TFLOP/s in a product of {side}^3 in {str(dtype).removeprefix('torch.')}"
    print(f"{name}, torch {torch.__version__}; {product}; {workers} workers, {size} images per step")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        there = scan_folder(args.data) if args.data else write_photographs(Path(folder), quality=95, large=False)
        for title in args.recipes:
            settings = [f"optim.batch={size}"]
            if device.type == "cuda":
                settings += ["efficiency.precision=bf16", "efficiency.compile=true"]
            recipe = apply(find_recipe(title), [*settings, f"efficiency.device={device}"])
            if args.tiny:
                recipe = apply(recipe, [*TINY, f"model.backbone={TINY_BACKBONES[recipe.model.backbone]}"])
            recipe = apply(recipe, args.overrides)
            flops = count(recipe).flops.image
            timings = compare(recipe, repeated(there, 4 * size), workers, steps)
            print(f"\n{title}, {recipe.model.backbone}, {flops / 1e9:.4g} GFLOP an image")
            header = ("images/s alone", "of the peak", "GiB", "with loader", "first loss")
            print(f"{'':8}" + "".join(f"{column:>16}" for column in header))
            for way, of in timings.items():
                columns = f"{of.alone:16.1f}{of.alone * flops / peak:16.1%}{of.memory or float('nan'):16.2f}"
                print(f"{way:8}{columns}{of.with_loader:16.1f}{of.loss:16.4f}")
            ours, plain = timings["ours"], timings["plain"]
            alone, together = ours.alone / plain.alone, ours.with_loader / plain.with_loader
            print(f"ours is {alone:.2f} times as fast alone, {together:.2f} times with the loader; its time goes to:")
            for operation, share in ours.operations:
                print(f"  {share:6.1%}  {operation[:100]}")
            of_recipe: dict[str, Any] = {way: asdict(of) for way, of in timings.items()}
            figures[title] = of_recipe | {"flops_per_image": flops, "peak": peak, "images": size, "workers": workers}
    if args.json:
        write_text(json.dumps(figures, indent=2) + "\n", args.json)


if __name__ == "__main__":
    main()
