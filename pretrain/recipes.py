"""The recipes that have names, as functions.

Family `paper` (no suffix) follows the paper's text, family `official` (suffix `_official`) what the authors' code does.
Importing this file needs no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from excb.settings import OFFICIAL

from .recipe import Recipe

OFFICIAL_VIEWS: dict[str, Any] = {
    "blur": (0.0, 0.9),  # the authors' code passes 1 - p
    "blur_local": 0.0,
    "blur_kernel": 9,
    "std": (0.228, 0.224, 0.225),
}
OFFICIAL_CROPS: dict[str, Any] = {"global_scale": (0.26, 1.0), "local_scale": (0.05, 0.26), "scale_end": 0.14}


# Views of small images: blur would leave little of them.
SHARP: dict[str, Any] = {"blur": (0.0, 0.0), "blur_local": 0.0, "solarize": (0.0, 0.0)}
# Colours closer to what they are than in the paper's views, and those that hardly change (docs/photographs.md).
NEAR_COLOURS: dict[str, Any] = SHARP | {"hue": 0.02, "grey": 0.05}
WEAK_JITTER: dict[str, Any] = {"jitter": 0.4, "hue": 0.02, "grey": 0.05}

VOTING_GROUP = 250  # images that vote for each other where they are of one folder: see `run.monitor.groups_and_voters`
MEASURED_SHARE = 0.1  # of the images of a run: measuring is a tenth of its passes at most

# For runs of some thousand steps: the teacher follows faster, and projections are kept apart from the first steps on.
SHORT_RUN: dict[str, Any] = {
    "hidden": 512,
    "projector_output_norm": True,
    "teacher_momentum": 0.9,
    "teacher_momentum_end": 0.99,
}


# Of recipes of ours. The paper's do not depend on the machine: they are in fp32 unless a run says otherwise.
AUTO_PRECISION: dict[str, Any] = {"precision": "auto"}


def _official(recipe: Recipe) -> Recipe:
    """The same run as the authors' code does it."""
    crops = OFFICIAL_CROPS if recipe.views.local_views else {}
    return replace(recipe, name=f"{recipe.name}_official").change(
        method=OFFICIAL, views=OFFICIAL_VIEWS | crops, optim={"lr_floor": 1e-4}
    )


def rn50(epochs: int) -> Recipe:
    """ResNet-50 with multi-crop (Tables 1, 3). Paper: linear 74.5, 75.7, 76.5 after 100, 200, 400 epochs; 4 A100s."""
    return Recipe(name=f"rn50_{epochs}ep").change(optim={"epochs": epochs})


def rn50_2x224(epochs: int) -> Recipe:
    """ResNet-50 without multi-crop (Table 3). Paper: linear 70.7, 72.7, 73.9 after 100, 200, 400 epochs; 4 A100s."""
    recipe = replace(rn50(epochs), name=f"rn50_{epochs}ep_2x224")
    return recipe.change(views={"local_views": 0, "global_scale": (0.14, 1.0)})


def vits16(epochs: int) -> Recipe:
    """ViT-S/16 with multi-crop and DINO's settings (Table 2). Paper: linear 73.9, 76.4, 77.1 after 100, 300, 800."""
    return Recipe(name=f"vits16_{epochs}ep").change(
        model={
            "backbone": "vit_small",
            "drop_path": 0.1,
            "position_interpolation": "dino",
            "class_token_std": 0.02,
        },
        optim={
            "optimizer": "adamw",
            "epochs": epochs,
            "base_lr": 5e-4,
            "lr_floor": 5e-4,  # DINO's 1e-6, of a peak of 0.002
            "weight_decay": 0.04,
            "weight_decay_end": 0.4,
            "centroid_decay": 1.0,  # the paper names the centroids' own decay for ResNet-50 only
            "clip": 3.0,
            "frozen_centroid_epochs": 1,
        },
    )


def vits16_official(epochs: int) -> Recipe:
    """ViT-S/16 as the authors' code trains it: no clipping, no frozen epoch, the centroids' own decay here too."""
    return _official(vits16(epochs)).change(optim={"clip": None, "frozen_centroid_epochs": 0, "centroid_decay": 10.0})


def rn18_small() -> Recipe:
    """ResNet-18 at 64 pixels for sets of a few thousand to a hundred thousand photographs, with a GPU or many hours.

    In runs this short a residual branch that starts at zero hardly learns, so none does. Colours stay closer to what
    they are than in the paper's views, and a cluster holds some twenty images of 2,640.
    """
    return Recipe(name="rn18_small").change(
        model={"backbone": "resnet18", "options": {"zero_init_residual": False}},
        method=SHORT_RUN | {"clusters": 128, "sizes_momentum": 0.99, "contrast": 1.0},
        views=NEAR_COLOURS
        | {"local_views": 2, "global_size": 64, "local_size": 32, "eval_resize": 80, "eval_crop": 80},
        optim={"epochs": 30, "batch": 64, "base_lr": 0.3, "warmup_epochs": 1.0},
        monitor={"every_epochs": 5, "share": MEASURED_SHARE},
        efficiency=AUTO_PRECISION,
    )


def quickstart() -> Recipe:
    """A small network on patches of photographs: end to end and offline, a minute or two on two CPU cores.

    Colour distinguishes its patches as well as texture does, so views keep their colours.
    """
    return Recipe(name="quickstart").change(
        model={"backbone": "conv4"},
        method=SHORT_RUN
        | {
            "clusters": 128,
            "sizes_momentum": 0.99,
            "contrast": 2.0,
        },
        views=SHARP
        | {
            "local_views": 2,
            "global_size": 32,
            "local_size": 20,
            "jitter": 0.0,
            "grey": 0.0,
            "eval_resize": 48,
            "eval_crop": 48,
        },
        optim={"epochs": 9, "batch": 128, "base_lr": 0.3, "warmup_epochs": 0.5},
        monitor={"every_epochs": 5, "images": 1_000},
        efficiency=AUTO_PRECISION,
    )


def conv4_tiny() -> Recipe:
    """Our small network at 32 pixels for comparing methods (`excb-pretrain study`): minutes on one CPU core."""
    return replace(quickstart(), name="conv4_tiny").change(
        method={"clusters": 256, "contrast": 0.0},
        views={"global_size": 32, "local_size": 16, "eval_resize": 32, "eval_crop": 32},
        optim={"epochs": 40, "batch": 64, "base_lr": 0.6},
        monitor={"every_epochs": 40, "images": 10_000, "share": MEASURED_SHARE},
        run={"keep": 1},
    )


def photos_small() -> Recipe:
    """For up to some ten thousand photographs on a CPU: our small network at 64 pixels, clusters and contrast together.

    Views keep their colours: where colour distinguishes images, strong jitter costs two fifths of the accuracy. Where
    it does not, set views.jitter=0.8 views.grey=0.2 (docs/photographs.md).
    """
    return replace(quickstart(), name="photos_small").change(
        model={"options": {"widths": [32, 64, 128, 512]}},
        method={"clusters": 256, "contrast": 2.0},
        views={"global_size": 64, "local_size": 32, "eval_resize": 96, "eval_crop": 80},
        optim={"epochs": 100, "batch": 64, "base_lr": 0.6},
        monitor={"every_epochs": 10, "images": 10_000, "share": MEASURED_SHARE},
        efficiency={"scaled_decoding": True},
    )


def photos() -> Recipe:
    """For tens or hundreds of thousands of photographs and a GPU for a day: ResNet-50, clusters and contrast together.

    What helps small runs (`photos_small`), on the paper's network and views. Colours change weakly: on three sets of
    images that was never worse than keeping them by more than chance (docs/photographs.md, by small runs). The recipe
    itself is not measured: no GPU was at hand.
    """
    return Recipe(name="photos").change(
        method={"clusters": 4096, "projector_output_norm": True, "sizes_momentum": 0.99, "contrast": 1.0},
        views=WEAK_JITTER | {"local_views": 4},
        optim={"epochs": 200, "batch": 256, "base_lr": 0.3, "warmup_epochs": 5.0},
        efficiency=AUTO_PRECISION | {"scaled_decoding": True},
    )


def adapt() -> Recipe:
    """From a trained backbone (`init`) to a few thousand images of your own, without losing what it knows.

    Heads and centroids learn on the frozen backbone first. Its layers are released from the last to the first, the
    earlier the more slowly, and an anchor keeps its features near what they were. The run ends once it only loses.
    """
    return Recipe(name="adapt").change(
        method={
            "clusters": 128,
            "hidden": 512,
            "projector_output_norm": True,
            "centroid_init": "kmeans",
            "sizes_momentum": 0.99,
            "teacher_momentum": 0.99,
            "teacher_momentum_end": 0.999,
            "contrast": 1.0,
        },
        views=NEAR_COLOURS | {"local_views": 0},
        optim={
            "optimizer": "adamw",
            "epochs": 10,
            "batch": 64,
            "base_lr": 2e-3,
            "warmup_epochs": 0.5,
            "weight_decay": 0.04,
            "weight_decay_end": 0.04,
            "centroid_decay": 1.0,
            "clip": 3.0,
        },
        adapt={
            "warmup_epochs": 0.5,
            "release_epochs": 1.5,
            "layer_decay": 0.75,
            "anchor": 0.3,
            "anchor_end": 0.1,
            "frozen_statistics": True,
            "patience": 4,
        },
        monitor={"every_epochs": 1, "group": VOTING_GROUP},
        efficiency=AUTO_PRECISION,
    )


# What a run that learns from teachers alone leaves out of the method; the averaged network is evaluated here, too.
TAUGHT: dict[str, Any] = {"clustering": False, "predictor": False, "teacher_statistics": "averaged"}


def distil() -> Recipe:
    """A small network of your own that learns, from your images, to see what a large public one sees.

    The teacher sees every image once, and its features are kept. The student sees one crop of it in a step, and
    predicts them. Balanced assignments teach faster at first, and less in the end (docs/distil.md).
    """
    return replace(photos_small(), name="distil").change(
        method=TAUGHT | {"contrast": 0.0},
        views={"global_views": 1, "local_views": 0, "global_scale": (0.25, 1.0)},
        distil={"features": 1.0},
        optim={
            "epochs": 200,
            "optimizer": "adamw",
            "base_lr": 8e-3,
            "warmup_epochs": 1.0,
            "weight_decay": 0.02,
            "weight_decay_end": 0.02,
        },
    )


def cifar10() -> Recipe:
    """ResNet-18 with a stem for images of 32 pixels, on CIFAR-10 or a set like it: the field's small comparison.

    Two views, without blur and solarization, as solo-learn trains on CIFAR-10. A cluster holds some 25 of its images.
    With cluster sizes averaged over fewer batches (a momentum of 0.99) whole batches moved from cluster to cluster.
    After 30 epochs, 72.0 % k-NN and 75.7 % logistic regression; without contrast 64.0 and 71.4 (docs/claims.md).
    """
    return Recipe(name="cifar10").change(
        model={"backbone": "resnet18_cifar", "options": {"zero_init_residual": False}},
        method={
            "clusters": 2048,
            "projector_output_norm": True,
            "sizes_momentum": 0.999,
            "teacher_momentum": 0.99,
            "contrast": 1.0,
        },
        views=SHARP | {"local_views": 0, "global_size": 32, "eval_resize": 32, "eval_crop": 32},
        optim={"epochs": 200, "batch": 256, "base_lr": 0.3, "warmup_epochs": 5.0},
        monitor={"every_epochs": 20, "share": MEASURED_SHARE},
        efficiency=AUTO_PRECISION,
    )


def cifar10_small() -> Recipe:
    """Our small network for images of 32 pixels, on a CPU: CIFAR-10 or a set like it, where colours vary freely.

    Its stem keeps more of a small image than that of `photos_small`, at twice the time; in equal time it is ahead.
    Chosen on training images of CIFAR-10 alone (docs/claims.md).
    """
    return replace(photos_small(), name="cifar10_small").change(
        model={"options": {"widths": [24, 48, 96, 256], "stem": 2}},
        views={
            "jitter": 0.8,
            "grey": 0.2,
            "global_size": 32,
            "local_size": 16,
            "eval_resize": 32,
            "eval_crop": 32,
        },
        optim={"epochs": 20},
    )


def rn10_tiny() -> Recipe:
    """A small ResNet at 32 pixels. It needs more epochs than `conv4_tiny` to learn as much."""
    return replace(conv4_tiny(), name="rn10_tiny").change(
        model={
            "backbone": "timm:resnet10t",
            "options": {"channels": [24, 48, 96, 256], "stem_width": 8, "avg_down": False, "zero_init_last": False},
        },
    )


def _official_run(run: Callable[[int], Recipe], epochs: int) -> Recipe:
    return _official(run(epochs))


def _paper_runs() -> dict[str, Callable[[], Recipe]]:
    runs: dict[str, Callable[[], Recipe]] = {}
    for epochs in (100, 200, 400):
        runs[f"rn50_{epochs}ep"] = partial(rn50, epochs)
        runs[f"rn50_{epochs}ep_official"] = partial(_official_run, rn50, epochs)
        runs[f"rn50_{epochs}ep_2x224"] = partial(rn50_2x224, epochs)
        runs[f"rn50_{epochs}ep_2x224_official"] = partial(_official_run, rn50_2x224, epochs)
    for epochs in (100, 300, 800):
        runs[f"vits16_{epochs}ep"] = partial(vits16, epochs)
        runs[f"vits16_{epochs}ep_official"] = partial(vits16_official, epochs)
    return runs


RECIPES: dict[str, Callable[[], Recipe]] = {
    "quickstart": quickstart,
    "rn18_small": rn18_small,
    "photos_small": photos_small,
    "photos": photos,
    "adapt": adapt,
    "distil": distil,
    "cifar10": cifar10,
    "cifar10_small": cifar10_small,
    "conv4_tiny": conv4_tiny,
    "rn10_tiny": rn10_tiny,
    **_paper_runs(),
}


# Other spellings of names above.
ALIASES = {"distill": "distil"}


@dataclass(frozen=True)
class About:
    """The purpose of a recipe, for those who choose one."""

    purpose: str
    images: str  # how many it is made for
    typical: int  # images that hours are stated for
    # Of an image in all its views, forward and backward, as `excb-pretrain plan` counts. Of a student, with a head for
    # one teacher of 1,280 features, which sees an image once and is not counted.
    gflop: float


def about(name: str) -> About:
    """The purpose of the recipe of that name."""
    if name in _ABOUT:
        return _ABOUT[name]
    if name.startswith("vits16"):
        return About("the paper's ViT-S/16", "100,000 or more", 1_281_167, 103.9)
    if "2x224" in name:
        return About("the paper's ResNet-50 without multi-crop", "100,000 or more", 1_281_167, 65.5)
    return About("the paper's ResNet-50", "100,000 or more", 1_281_167, 93.4)


_ABOUT = {
    "quickstart": About("a first try, offline", "1,000 to 10,000 patches", 2_816, 0.0686),
    "photos_small": About("photographs of your own, on one machine", "1,000 to 10,000", 10_000, 0.325),
    "photos": About("photographs of your own, with a GPU for a day", "20,000 to 1,000,000", 200_000, 83.2),
    "adapt": About("photographs of your own, from a trained backbone", "500 to 100,000", 10_000, 73.9),
    "distil": About("a small network taught by a large one, on your photographs", "1,000 to 100,000", 10_000, 0.0992),
    "rn18_small": About("photographs of your own, with a ResNet-18", "1,000 to 100,000", 10_000, 2.79),
    "cifar10": About("CIFAR-10 and sets like it, on a GPU", "10,000 or more of 32 px", 50_000, 9.0),
    "cifar10_small": About("CIFAR-10 and sets like it, on a CPU", "5,000 to 50,000 of 32 px", 50_000, 0.195),
    "conv4_tiny": About("comparing methods (study)", "1,000 to 10,000 tiny ones", 2_640, 0.0572),
    "rn10_tiny": About("comparing methods on a ResNet", "1,000 to 10,000 tiny ones", 2_640, 0.0859),
}
