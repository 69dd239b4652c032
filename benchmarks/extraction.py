"""Speed of feature extraction in images/s, and the part of the time that goes into reading the images.

Run: python benchmarks/extraction.py [--arch resnet50] [--images 64] [--batch 32] [--workers 0] [--turns 3] [--data DIR]
     [--size PX] [--options JSON]
     python benchmarks/extraction.py --device cuda --images 4096 --batch 256 --workers 12 [--json FILE]

Images are the photographs of scikit-image and scikit-learn at ImageNet's usual size, 500 x 375, as JPEG files that the
system holds in memory, or the first ones below DIR, which has a sub-folder for each class; weights are random. "plain"
is what evaluation scripts do: torchvision's ImageFolder, Resize, CenterCrop, ToTensor, Normalize and a DataLoader.
"ours" is `excb.networks.features.extract`, as `excb-eval` calls it. "network" passes prepared inputs through the same
network. Ways take turns, and the fastest turn counts, because others may use the machine.
"""

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms

from excb.files.atomic import write_text
from excb.images.image_set import ImageSet
from excb.images.photographs import PHOTOGRAPHS, photograph
from excb.images.scanning import scan_folder
from excb.networks.architecture import Architecture
from excb.networks.features import Inputs, extract
from excb.networks.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


def write_photographs(folder: Path, count: int) -> None:
    """So many JPEG files, in one class."""
    (folder / "class").mkdir()
    names = list(PHOTOGRAPHS)
    for number in range(count):
        picture = photograph(names[number % len(names)])
        fitted = ImageOps.fit(picture, (500, 375), Image.Resampling.BICUBIC)
        fitted.save(folder / "class" / f"{number:05}.jpg", quality=95)


def main() -> None:
    """Print images per second of each way, and ratios."""
    parser = argparse.ArgumentParser(description="images per second of feature extraction")
    parser.add_argument("--arch", default="resnet50")
    for name, default in (("images", 64), ("batch", 32), ("workers", 0), ("turns", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="of the architecture")
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="of the images that pass, resized to 8/7")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, metavar="DIR", help="images (default: photographs of scikit-image)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    network = Architecture(args.arch, args.options).build().eval().to(device)
    layout = torch.channels_last if device.type == "cpu" else torch.preserve_format  # as `Task.prepare` has it
    faster = copy.deepcopy(network).to(memory_format=layout)
    preprocessing = Preprocessing(resize=args.size * 8 // 7, crop=args.size)
    with tempfile.TemporaryDirectory() as name:
        folder = args.data or Path(name)
        if not args.data:
            write_photographs(folder, args.images)
        found = scan_folder(folder)
        count = min(args.images, len(found))
        transform = transforms.Compose(
            [
                transforms.Resize(preprocessing.resize),
                transforms.CenterCrop(preprocessing.crop),
                transforms.ToTensor(),
                transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
            ]
        )
        files = Subset(datasets.ImageFolder(folder, transform), range(count))
        loader = DataLoader(files, batch_size=args.batch, num_workers=args.workers)
        inputs = Inputs(ImageSet(found.root, found.paths[:count]), preprocessing)
        ready = torch.stack([preprocessing(inputs.images.open(index)) for index in range(count)])

        @torch.no_grad()
        def plain() -> Tensor:
            return torch.cat([network(images.to(device)).cpu() for images, _ in loader])

        @torch.no_grad()
        def alone() -> Tensor:
            return torch.cat([faster(images.to(device)).cpu() for images in ready.split(args.batch)])

        def ours() -> Tensor:
            return extract(faster, inputs, device=device, batch=args.batch, workers=args.workers).rows

        ways: dict[str, Callable[[], Tensor]] = {"plain": plain, "ours": ours, "network": alone}
        rows = {way: work() for way, work in ways.items()}
        least = dict.fromkeys(ways, float("inf"))
        for _ in range(args.turns):
            for way, work in ways.items():
                start = time.perf_counter()
                work()
                least[way] = min(least[way], time.perf_counter() - start)
    weights = sum(tensor.numel() for tensor in network.parameters())
    stored = sum(tensor.nbytes for tensor in network.state_dict().values()) / 2**20
    print(f"torch {torch.__version__}, {device}, {args.threads} thread(s), {args.workers} workers")
    print(f"{args.arch}, {args.size} px, {weights / 1e6:.2f} million weights, {stored:.1f} MiB")
    for way, seconds in least.items():
        print(f"{way:8}{count / seconds:9.1f} images/s{least['plain'] / seconds:7.2f} of plain")
    apart = ((rows["ours"] - rows["plain"]).norm() / rows["plain"].norm()).item()
    print(f"features of ours and plain: {apart:.1e} apart")
    if args.json:
        figures = {"images_per_second": {way: count / seconds for way, seconds in least.items()}, "apart": apart}
        write_text(json.dumps(figures, indent=2) + "\n", args.json)


if __name__ == "__main__":
    main()
