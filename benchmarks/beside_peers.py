"""Views and training steps of lightly, albumentations, torchvision and ExCB's authors beside ours: processor time.

Run: OMP_NUM_THREADS=1 python -m benchmarks.beside_peers views [--turns 5]
     OMP_NUM_THREADS=1 python -m benchmarks.beside_peers steps [--turns 6] [--backbones resnet18 conv4] [--authors DIR]
(lightly and albumentations have to be installed, and for the authors' code einops, wandb and termcolor; they are no
dependency of ours. DIR is a checkout of github.com/ManiadisG/ExCB)

"views" makes the 2 + 6 views of `rn50_100ep` of photographs of 500 x 375 pixels, on one thread: from a file's bytes
to normalised tensors. albumentations resizes without antialiasing. "steps" trains on 64 photographs of 128 pixels with
views of 64 and 32: SimCLR with reading, two views; and two global and six local views of random images without reading,
our loss with 3,000 clusters beside lightly's DINO and SwAV with as many outputs, and beside `benchmarks.plain_step`. Of
the authors' code it takes the head, the loss and the teacher's average, without the processes and the log around them.
Networks, batches and optimizers are the same, theirs as lightly's own examples put them together. Peers run in float32,
as on a CPU they do by default.
"""

import argparse
import copy
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import InterpolationMode, v2

from benchmarks.input_pipeline import Way, least_seconds, ours, published, write_photographs
from benchmarks.plain_step import Plain
from excb.images.image_set import ImageSet
from excb.images.photographs import PHOTOGRAPHS, photograph
from excb.pretrain.data.loader import loader
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.speed import build_trainer, random_batch
from excb.pretrain.recipe import Recipe, ViewSettings
from excb.pretrain.study.studies import SIMCLR

IMAGES, SIDE, CLUSTERS = 64, 128, 3000
JITTER = ("views.jitter=0.8", "views.grey=0.2")
SIZES = ("views.global_size=64", "views.local_size=32", f"optim.batch={IMAGES}", "efficiency.workers=0")

Step = Callable[[int], object]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("views", "steps"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--backbones", nargs="+", default=["resnet18", "conv4"])
    parser.add_argument("--authors", type=Path, metavar="DIR", help="a checkout of the authors' code")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.part == "views":
            show(views(Path(folder), args.turns), 1, "ours")
            return
        for backbone in args.backbones:
            parts = ((with_reading(backbone, Path(folder)), "SimCLR"), (alone(backbone, args.authors), "ExCB"))
            for steps, first in parts:
                print(f"\n{backbone}, {first}")
                show(median_seconds(steps, args.turns), IMAGES, "ours, fp32")


def show(seconds: dict[str, float], images: int, reference: str) -> None:
    """A row for each way: milliseconds an image, and its time as a multiple of the reference's."""
    for name, taken in seconds.items():
        print(f"{name:36}{1000 * taken / images:10.2f} ms{taken / seconds[reference]:8.2f}", flush=True)


def views(folder: Path, turns: int) -> dict[str, float]:
    """Seconds an image of every way to make the paper's views."""
    images, settings = write_photographs(folder, quality=95, large=False), find_recipe("rn50_100ep").views
    ways = {
        "ours": ours(images, settings, everything=True),
        "torchvision v2, tensors": torchvision_v2(images, settings),
        "torchvision, PIL": published(images, settings, pillow_blur=False),
        "lightly": lightly_views(images, settings),
        "albumentations": albumentations_views(images, settings),
    }
    return least_seconds(ways, len(images), choices=2, turns=turns)


def torchvision_v2(images: ImageSet, settings: ViewSettings) -> Way:
    """torchvision's second transforms on decoded bytes."""

    def pipeline(view: int) -> v2.Compose:
        first = view < settings.global_views
        jitter = v2.ColorJitter(settings.brightness, settings.contrast, settings.saturation, settings.hue)
        blur = v2.GaussianBlur(settings.blur_kernel, settings.blur_sigma)
        return v2.Compose(
            [
                v2.RandomResizedCrop(
                    settings.global_size if first else settings.local_size,
                    scale=settings.global_scale if first else settings.local_scale,
                    interpolation=InterpolationMode.BICUBIC,
                    antialias=True,
                ),
                v2.RandomHorizontalFlip(settings.flip),
                v2.RandomApply([jitter], settings.jitter),
                v2.RandomGrayscale(settings.grey),
                v2.RandomApply([blur], settings.blur[view % 2] if first else settings.blur_local),
                v2.RandomSolarize(128, settings.solarize[view % 2] if first else 0.0),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(settings.mean, settings.std),
            ]
        )

    pipelines = [pipeline(view) for view in range(settings.global_views + settings.local_views)]

    def make(number: int, choice: int) -> object:
        seed(number, choice)
        packed = torch.from_numpy(np.fromfile(images.file(number), np.uint8))
        image = decode_jpeg(packed, ImageReadMode.RGB)
        return [pipeline(image) for pipeline in pipelines]

    return make


def lightly_views(images: ImageSet, settings: ViewSettings) -> Way:
    """lightly's transforms for DINO, which have the paper's operations."""
    transform = import_module("lightly.transforms").DINOTransform(
        global_crop_size=settings.global_size,
        global_crop_scale=settings.global_scale,
        local_crop_size=settings.local_size,
        local_crop_scale=settings.local_scale,
        n_local_views=settings.local_views,
        **lightly_colours(settings),
        gaussian_blur=(*settings.blur, settings.blur_local),
        sigmas=settings.blur_sigma,
        solarization_prob=settings.solarize[1],
    )

    def make(number: int, choice: int) -> object:
        seed(number, choice)
        with images.file(number).open("rb") as file:
            return transform(Image.open(file).convert("RGB"))

    return make


def lightly_colours(settings: ViewSettings) -> dict[str, float]:
    """The changes of colour, as lightly's transforms call them."""
    return {
        "cj_prob": settings.jitter,
        "cj_strength": 1.0,
        "cj_bright": settings.brightness,
        "cj_contrast": settings.contrast,
        "cj_sat": settings.saturation,
        "cj_hue": settings.hue,
        "random_gray_scale": settings.grey,
    }


def albumentations_views(images: ImageSet, settings: ViewSettings) -> Way:
    """albumentations' transforms on arrays that OpenCV decodes."""
    a, cv2, to_tensor = (import_module(name) for name in ("albumentations", "cv2", "albumentations.pytorch"))
    cv2.setNumThreads(0)

    def pipeline(view: int) -> Any:
        first = view < settings.global_views
        side = settings.global_size if first else settings.local_size
        change = (settings.brightness, settings.contrast, settings.saturation, settings.hue)
        return a.Compose(
            [
                a.RandomResizedCrop(
                    size=(side, side),
                    scale=settings.global_scale if first else settings.local_scale,
                    interpolation=cv2.INTER_CUBIC,
                ),
                a.HorizontalFlip(p=settings.flip),
                a.ColorJitter(*change, p=settings.jitter),
                a.ToGray(p=settings.grey),
                a.GaussianBlur(
                    blur_limit=settings.blur_kernel,
                    sigma_limit=settings.blur_sigma,
                    p=settings.blur[view % 2] if first else settings.blur_local,
                ),
                a.Solarize(threshold_range=(0.5, 0.5), p=settings.solarize[view % 2] if first else 0.0),
                a.Normalize(settings.mean, settings.std),
                to_tensor.ToTensorV2(),
            ]
        )

    pipelines = [pipeline(view) for view in range(settings.global_views + settings.local_views)]

    def make(number: int, choice: int) -> object:
        for each in pipelines:
            each.set_random_seed(1000 * choice + number)
        image = cv2.cvtColor(cv2.imread(str(images.file(number))), cv2.COLOR_BGR2RGB)
        return [each(image=image)["image"] for each in pipelines]

    return make


def seed(number: int, choice: int) -> None:
    """The same random choices in every turn."""
    random.seed(1000 * choice + number)
    torch.manual_seed(1000 * choice + number)


def with_reading(backbone: str, folder: Path) -> dict[str, Step]:
    """Steps of SimCLR that read and augment their images first."""
    images = small_photographs(folder / backbone)
    steps: dict[str, Step] = {}
    for precision in ("fp32", "bf16"):
        recipe = recipe_for(backbone, precision, *SIMCLR, *JITTER, "views.local_views=0")
        steps[f"ours, {precision}"] = our_step(recipe, iter(loader_of(images, recipe)))
    steps["lightly's SimCLR"] = lightly_simclr(recipe, images)
    return steps


def alone(backbone: str, checkout: Path | None) -> dict[str, Step]:
    """Steps of clustering methods on one batch of 2 + 6 views."""
    steps: dict[str, Step] = {}
    for precision in ("fp32", "bf16"):
        values = (f"method.clusters={CLUSTERS}", "method.contrast=0", "views.local_views=6")
        recipe = recipe_for(backbone, precision, *values)
        steps[f"ours, {precision}"] = our_step(recipe, itertools.repeat(random_batch(recipe, IMAGES)))
    sizes = [recipe.views.global_size] * 2 + [recipe.views.local_size] * 6
    batch = [torch.randn(IMAGES, 3, size, size) for size in sizes]
    plain = Plain(recipe.change(efficiency={"precision": "fp32"}), torch.device("cpu"))
    steps["ExCB as published codes are written"] = lambda number: plain.step(batch, number)
    if checkout is not None:
        steps["the authors' code"] = authors(recipe, batch, checkout)
    return steps | {"lightly's DINO": lightly_dino(recipe, batch), "lightly's SwAV": lightly_swav(recipe, batch)}


def recipe_for(backbone: str, precision: str, *values: str) -> Recipe:
    """The settings of a way of ours."""
    shared = [*SIZES, f"model.backbone={backbone}", f"efficiency.precision={precision}"]
    options = [] if backbone == "conv4" else ["model.options={}"]
    return apply(find_recipe("photos_small"), [*options, *shared, *values])


def small_photographs(folder: Path) -> ImageSet:
    """Photographs of `SIDE` pixels, as many as a batch has."""
    folder.mkdir()
    names = list(PHOTOGRAPHS)
    for number in range(IMAGES):
        picture = photograph(names[number % len(names)])
        picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / f"{number:02}.jpg", quality=90)
    return ImageSet(folder, [f"{number:02}.jpg" for number in range(IMAGES)])


def loader_of(images: ImageSet, recipe: Recipe) -> Any:
    """Our batches, without an end."""
    return loader(images, recipe, start=0, stop=10**6, workers=0, pin_memory=False)


def our_step(recipe: Recipe, batches: Iterator[Any]) -> Step:
    """A step of a run."""
    trainer = build_trainer(recipe, torch.device("cpu"))

    def step(number: int) -> None:
        trainer.step(next(batches), number)
        trainer.synchronize()

    return step


class Read(Dataset[list[Tensor]]):
    """Images by Pillow, through a transform of lightly."""

    def __init__(self, images: ImageSet, transform: Callable[[Image.Image], list[Tensor]]) -> None:
        self._images, self._transform = images, transform

    def __len__(self) -> int:
        """Number of images."""
        return len(self._images)

    def __getitem__(self, index: int) -> list[Tensor]:
        """The views of an image."""
        with self._images.file(index).open("rb") as file:
            return self._transform(Image.open(file).convert("RGB"))


def lightly_simclr(recipe: Recipe, images: ImageSet) -> Step:
    """SimCLR of lightly's parts."""
    heads, losses, transforms = parts_of_lightly()
    views = recipe.views
    transform = transforms.SimCLRTransform(
        input_size=views.global_size,
        min_scale=views.global_scale[0],
        **lightly_colours(views),
        gaussian_blur=0.0,
    )
    batches = itertools.chain.from_iterable(
        itertools.repeat(DataLoader(Read(images, transform), batch_size=IMAGES, shuffle=True, drop_last=True))
    )
    network, width = network_of(recipe)
    head = heads.SimCLRProjectionHead(width, recipe.method.hidden, recipe.method.width)
    loss = losses.NTXentLoss(temperature=recipe.method.contrast_temperature)
    optimizer = optimizer_of(network, head)

    def step(_number: int) -> None:
        first, second = next(batches)
        optimizer.zero_grad()
        loss(head(network(first)), head(network(second))).backward()
        optimizer.step()

    return step


def lightly_dino(recipe: Recipe, batch: Sequence[Tensor]) -> Step:
    """DINO of lightly's parts: its teacher sees the global views."""
    heads, losses, _ = parts_of_lightly()
    network, width = network_of(recipe)
    head, teacher_head = (
        heads.DINOProjectionHead(width, recipe.method.hidden, recipe.method.width, CLUSTERS) for _ in range(2)
    )
    teacher = copy.deepcopy(network)
    loss, optimizer = losses.DINOLoss(output_dim=CLUSTERS), optimizer_of(network, head)
    follow = import_module("lightly.models.utils").update_momentum

    def step(number: int) -> None:
        follow(network, teacher, m=0.99)
        follow(head, teacher_head, m=0.99)
        with torch.no_grad():
            targets = [teacher_head(teacher(view)) for view in batch[:2]]
        outputs = [head(network(view)) for view in batch]
        optimizer.zero_grad()
        loss(targets, outputs, epoch=number).backward()
        optimizer.step()

    return step


def lightly_swav(recipe: Recipe, batch: Sequence[Tensor]) -> Step:
    """SwAV of lightly's parts, which has no teacher."""
    heads, losses, _ = parts_of_lightly()
    network, width = network_of(recipe)
    head = heads.SwaVProjectionHead(width, recipe.method.hidden, recipe.method.width)
    prototypes = heads.SwaVPrototypes(recipe.method.width, CLUSTERS)
    loss, optimizer = losses.SwaVLoss(), optimizer_of(network, head, prototypes)

    def step(_number: int) -> None:
        prototypes.normalize()
        rows = [prototypes(nn.functional.normalize(head(network(view)), dim=1)) for view in batch]
        optimizer.zero_grad()
        loss(rows[:2], rows[2:]).backward()
        optimizer.step()

    return step


class Authors(nn.Module):
    """A network with the authors' head, as their `Classifier` has it."""

    def __init__(self, recipe: Recipe, head: Callable[..., nn.Module]) -> None:
        super().__init__()
        method = recipe.method
        self.network, width = network_of(recipe)
        self.head = head(
            *(width, method.clusters, method.hidden, method.projector_layers, method.width),
            predictor=True,
            local_crop_grads=False,
            predictor_activation="bn",
        )

    def forward(self, views: list[Tensor], *, predictor: bool) -> Tensor:
        """Similarities of all rows [rows, K], and of their predictions below them."""
        similarities: Tensor = self.head([self.network(view) for view in views], predictor)[0]
        return similarities


def authors(recipe: Recipe, batch: Sequence[Tensor], checkout: Path) -> Step:
    """ExCB of the authors' parts: their configuration's temperatures, centroids and pairs of views."""
    sys.path.insert(0, str(checkout))
    layers, losses, models = map(import_module, ("architectures.layers", "engine.criterion", "engine.model"))
    student, teacher = (Authors(recipe, layers.MLPBottleneckClassifier) for _ in range(2))
    average = models.EMAHandler(student, teacher)
    loss = losses.ClusteringLoss(
        recipe.method.clusters, 1, 1000, 1000, 0.04, 0.1, 0.999, argparse.Namespace(batch_size=IMAGES)
    )
    optimizer, globals_ = optimizer_of(student), torch.cat([*batch[:2]])
    sizes, views = [globals_, torch.cat([*batch[2:]])], len(batch)
    pairs = [[other for other in range(2) if other != each] + list(range(views, 2 * views)) for each in range(2)]
    matches = {"student_views": 2 * views, "teacher_views": 2, "matches": pairs}

    def step(number: int) -> None:
        optimizer.zero_grad()
        with torch.no_grad():
            targets = teacher([globals_], predictor=False)
        loss(student(sizes, predictor=True), targets, matches, 0, number)[0].backward()
        optimizer.step()
        average.ema_step(student, teacher, 0.996)

    return step


def parts_of_lightly() -> tuple[Any, Any, Any]:
    """Its heads, losses and transforms."""
    heads, losses, transforms = (import_module(f"lightly.{name}") for name in ("models.modules", "loss", "transforms"))
    return heads, losses, transforms


def network_of(recipe: Recipe) -> tuple[nn.Module, int]:
    """The recipe's network with new weights, and its width."""
    network = build_model(recipe, ()).student.backbone
    with torch.no_grad():
        return network, network(torch.zeros(2, 3, recipe.views.global_size, recipe.views.global_size)).shape[1]


def optimizer_of(*modules: nn.Module) -> torch.optim.Optimizer:
    """As ours: SGD with momentum."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)


def median_seconds(steps: dict[str, Step], turns: int) -> dict[str, float]:
    """The median processor time of every way's step, by turns; the first ones warm up."""
    seconds = {name: list[float]() for name in steps}
    for number in range(turns + 2):
        for name, step in steps.items():
            start = time.process_time()
            step(number)
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(taken[2:]) for name, taken in seconds.items()}


if __name__ == "__main__":
    main()
