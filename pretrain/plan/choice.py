"""`excb-pretrain choose`: a recipe and its values for some images, a machine and a number of hours, with reasons."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from excb.console import duration, plural
from excb.distributed.machine import usable_cores
from excb.errors import require
from excb.images.image_set import CodedImages
from excb.images.pixels import Pixels, pixels_of
from excb.networks.architecture import RGB

from .. import overrides
from ..precision import resolved
from ..recipe import Recipe
from ..recipes import WEAK_JITTER
from ..run.rules import clusters_for, in_each, median_side
from .flops import count
from .memory import step_memory
from .speed import measure_step
from .trace import Trace, trace_step

FEWEST = 32  # images that a run can be proposed for
FEW = 1_000  # images, below which features of another set are a better start
LARGE = 20_000  # images, from which a ResNet-50 on a GPU is worth its time
LARGEST = 500_000  # images, from which the paper's recipe is
LARGE_SIDE = 160  # pixels that their views need
SMALL, MEDIUM, PAPER = "photos_small", "photos", "rn50_100ep"
TINY, SMALL_VIEW = "cifar10_small", 32  # the recipe whose network is for views of so many pixels
COPIES = {SMALL: 256, MEDIUM: 640}  # shorter side of copies that views of these recipes lose nothing by
MUCH_LARGER = 3  # times these sides, from which decoding takes longer than training
STEPS, MOST_STEPS = 4_000, 16_000  # of a run, and of one that has hours to spare
MEASURED_FLOPS = 5e10  # of the step that is measured on a CPU, at most: about a second
MEASURED_SECONDS = 2.0
ROOM = 0.9  # of a GPU's memory


@dataclass(frozen=True)
class RecipeChoice:
    """A proposal."""

    recipe: str
    values: tuple[str, ...]  # overrides
    data: str  # as the command names it
    images: int
    side: int  # median shorter side in pixels
    hours: float  # of the run, from a step that was measured here
    gpus: int = 0  # to name in the command; 0 names none
    reasons: list[str] = field(default_factory=list)
    listed: Path | None = None  # the list of the images below it, if there is one
    declared: tuple[str, ...] = ()  # of the values: those that say what the images' stored values are

    @property
    def named(self) -> list[str]:
        """The images, as every command names them."""
        return _named(self.data, self.listed)

    @property
    def command(self) -> str:
        """The command to type."""
        gpus = ["--gpus", str(self.gpus)] if self.gpus else []
        return shlex.join(["excb-pretrain", self.recipe, *self.named, *gpus, *self.values])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("recipe", "images", "side", "hours", "reasons")
        return {"command": self.command, "overrides": [*self.values]} | {name: getattr(self, name) for name in names}


def choose_recipe(
    images: CodedImages,
    data: str,
    device: torch.device,
    *,
    listed: Path | None = None,
    gpus: int | None = None,
    hours: float | None = None,
    declared: Sequence[str] = (),
) -> RecipeChoice:
    """Propose a recipe; one step of it is measured on the device.

    Args:
        images: the training images.
        data: how the command names them.
        device: where the run trains.
        listed: the list of the images, which the command then names, too.
        gpus: GPUs of this machine to use; None for all.
        hours: that the run may take; None for as long as is sensible.
        declared: overrides that say what the images' values are.

    Raises:
        UserError: there are too few images, or no time.
    """
    number = len(images)
    require(hours is None or hours > 0, "--hours must be above 0")
    require(
        number >= FEWEST,
        f"{images.root} holds {plural(number, 'image')}, too few to learn from: collect some thousand, or use a "
        "trained network (`excb-zoo list`)",
    )
    side = _side_of(images)
    processes = max(1, torch.cuda.device_count() if gpus is None else gpus) if device.type == "cuda" else 1
    where = f"{processes} x {torch.cuda.get_device_name(device)}" if device.type == "cuda" else _cores()
    reasons = [f"{plural(number, 'image')}, their shorter side {side} pixels (median); {where}"]
    if device.type == "cuda" and number >= LARGE and side >= LARGE_SIDE:
        name, values = _large(number, device, processes, reasons)
    else:
        name, values = _small(number, side, device, reasons, pixels_of(images))
    if side >= MUCH_LARGER * (copy := COPIES.get(name, side)):
        shrink = shlex.join(["excb-pretrain", "shrink", "--data", data, "--out", f"{data}{copy}", "--side", str(copy)])
        reasons.append(f"such large images take longer to decode than to train on; copy them first: {shrink}")
    speed = processes * _images_per_second(name, values, device)
    values, taken = _epochs(name, values, reasons, number=number, speed=speed, hours=hours)
    reasons.append(_alternatives(number, _named(data, listed)))
    before = overrides.find_recipe(name)
    changed = overrides.apply(before, values)
    unlike = (*declared, *(value for value in values if _field(before, value) != _field(changed, value)))
    return RecipeChoice(
        name,
        unlike,
        data,
        number,
        side,
        taken,
        processes if processes > 1 else 0,
        reasons,
        listed,
        tuple(declared),
    )


def _named(data: str, listed: Path | None) -> list[str]:
    return ["--data", data, *(["--list", str(listed)] if listed is not None else [])]


def _alternatives(number: int, named: Sequence[str]) -> str:
    """One reason that names the trained networks to use instead."""

    def command(*words: str) -> str:
        return shlex.join(["excb-pretrain", *words, *named])

    why = f"fewer than {FEW:,} images teach little" if number < FEW else "this recipe starts from random weights"
    return (
        f"{why}; compare with a trained network (NAME in `excb-zoo list`): as it is, excb.load('NAME'); adapted, "
        f"{command('adapt', 'NAME')}; or as the teacher of a small one, {command('distil', 'NAME')}"
    )


def _field(recipe: Recipe, override: str) -> Any:
    """The recipe's value of the field that an override names."""
    section, _, field = override.partition("=")[0].partition(".")
    return getattr(getattr(recipe, section), field)


def _cores() -> str:
    cores = usable_cores()
    return f"no GPU, {plural(cores, 'CPU core')}"


def _side_of(images: CodedImages) -> int:
    """The median shorter side of some images in pixels."""
    side = median_side(images)
    require(side is not None, f"none of the images looked at in {images.root} can be read: see `excb-pretrain doctor`")
    assert side is not None
    return side


def _small(number: int, side: int, device: torch.device, reasons: list[str], pixels: Pixels) -> tuple[str, list[str]]:
    """The recipe for sets of one machine, with batch, clusters and sizes for these images."""
    on_gpu = device.type == "cuda"
    needs = f"{LARGE:,} images of {LARGE_SIDE} pixels or more and a GPU"
    reasons.append(f"recipe {SMALL}, for one machine: a ResNet-50 is worth its time from {needs}")
    batch = min(256 if on_gpu and number >= 20_000 else 64, 2 ** int(math.log2(number / 4)))
    reasons.append(f"batch {batch}: at least four steps in an epoch, and 64 to 256 if there are enough images")
    clusters = clusters_for(number)
    reasons.append(
        f"{plural(clusters, 'cluster')}: about {in_each(number, clusters)} in each (with a larger K, clusters stay "
        "empty)"
    )
    size = 64 if side >= 96 else SMALL_VIEW
    evaluated = min(max(size, side // 8 * 8), size * 5 // 4)
    reasons.append(f"views of {size} pixels, evaluated at {evaluated}: images are {side} pixels")
    values = [f"optim.batch={batch}", f"method.clusters={clusters}"]
    if pixels.channels == RGB:
        values += [f"views.{name}={value}" for name, value in WEAK_JITTER.items()]
        reasons.append(
            "colours change weakly, which was never worse than keeping them by more than chance on four unlike sets "
            "(docs/photographs.md); where shape alone tells your images apart, set views.jitter=0.8 views.hue=0.1 "
            "views.grey=0.2"
        )
    if size == SMALL_VIEW:
        values.append(f"model.options={json.dumps(overrides.find_recipe(TINY).model.options)}")
        reasons.append(
            "a stem of stride 2, which keeps more of small views: in equal time it was ahead of the usual one, or "
            "level, on four unlike sets of 32 pixels (docs/photographs.md)"
        )
    values += [f"views.global_size={size}", f"views.local_size={size // 2}"]
    return SMALL, [*values, f"views.eval_resize={evaluated}", f"views.eval_crop={evaluated}"]


def _large(number: int, device: torch.device, processes: int, reasons: list[str]) -> tuple[str, list[str]]:
    """A ResNet-50 in micro-batches that fit into the GPU: the paper's recipe, or ours for fewer images."""
    values = ["efficiency.precision=auto"]
    if number >= LARGEST:
        name = PAPER
        reasons.append("recipe rn50: enough images for the paper's ResNet-50")
    else:
        name = MEDIUM
        clusters = min(clusters_for(number), 8192)
        values.append(f"method.clusters={clusters}")
        reasons.append(
            f"recipe {MEDIUM}: a ResNet-50 with clusters and contrast, {plural(clusters, 'cluster')}; not measured yet"
        )
    memory = torch.cuda.get_device_properties(device).total_memory
    # The contrastive term needs the whole batch at once.
    contrast = overrides.find_recipe(name).method.contrast > 0
    parts = [f"efficiency.accumulate={2**power}" for power in range(7)]
    fitting = ""
    trace: Trace | None = None
    for smaller in [f"optim.batch={2**power}" for power in range(8, 4, -1)] if contrast else parts:
        recipe = resolved(overrides.apply(overrides.find_recipe(name), [*values, smaller]), device)
        if recipe.optim.batch % (recipe.efficiency.accumulate * processes) == 0:
            fitting = smaller
            trace = trace or trace_step(recipe)  # the batch changes, and the trace has none
            if step_memory(recipe, recipe.micro_batch(processes), trace).total < ROOM * memory:
                break
    require(bool(fitting), f"{processes} GPUs cannot share the batch of {name} equally: name --gpus 1, 2, 4 or 8")
    precision = recipe.efficiency.precision
    reasons.append(f"{precision}, which efficiency.precision=auto is on such a GPU")
    reasons.append(f"{fitting}: what fits into {memory / 2**30:.0f} GiB, by the plan's count")
    values.append(fitting)
    return name, values


def _images_per_second(name: str, values: list[str], device: torch.device) -> float:
    """Of one process, measured on random images."""
    recipe = overrides.apply(overrides.find_recipe(name), [*values, "efficiency.accumulate=1"])
    share = recipe.optim.batch
    if device.type == "cpu":
        share = max(2, min(share, int(MEASURED_FLOPS / count(recipe).flops.image)))
    else:
        share = min(share, 64)
    return measure_step(recipe, share, device, seconds=MEASURED_SECONDS).images_per_second


def _epochs(
    name: str, values: list[str], reasons: list[str], *, number: int, speed: float, hours: float | None
) -> tuple[list[str], float]:
    """The values with a number of epochs, and the hours that they take."""
    recipe = overrides.apply(overrides.find_recipe(name), values)
    steps = recipe.steps_per_epoch(number)
    wanted = recipe.optim.epochs if name != SMALL else max(10, round(STEPS / steps))
    most = 400 if name != SMALL else max(wanted, round(MOST_STEPS / steps))
    fits = most if hours is None else int(hours * 3600 * speed / number)
    require(
        fits > 0,
        f"one epoch takes about {duration(number / speed)} here, more than --hours {hours or 0:g}: allow more time, "
        "use a GPU, or fewer images (--list FILE)",
    )
    epochs = min(most if hours is not None else wanted, fits)
    if hours is None:
        why = f"some {plural(epochs * steps, 'step')}"
    elif epochs < wanted:
        why = f"as many as {hours:g} h allow; {wanted} would be better"
    else:
        why = f"as many as {hours:g} h allow, at most {most}"
    reasons.append(f"{plural(epochs, 'epoch')}: {why}; a step was measured here ({speed:,.3g} images/s)")
    values = [*values, f"optim.epochs={epochs}"]
    if recipe.optim.warmup_epochs > epochs / 10:
        values.append(f"optim.warmup_epochs={epochs / 10:g}")
    return values, epochs * number / speed / 3600
