"""`excb.train` and `excb.plan`: pretraining from Python, by the functions that `excb-pretrain` calls; and `Run`."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter
from excb.errors import UserError, in_short, is_rank0, path_text, path_texts, require
from excb.files import json_text
from excb.files.foreign import read_bytes
from excb.files.run_files import RECIPE, REPORT

from . import overrides as overriding
from .recipe import Recipe
from .run.remote_mirror import RunLocation, run_place
from .verdict import RunVerdict

if TYPE_CHECKING:
    from torch import nn

    from excb.hub.backbone import Backbone
    from excb.images.image_set import CodedImages

    from .data.stream_images import StreamImages

    Checkpoint = str | os.PathLike[str]
    Teacher = str | os.PathLike[str] | nn.Module
    Teachers = Teacher | Sequence[Teacher] | None

FOLDER = "data is one folder of images, at any depth, or shards or a named set"  # and nothing else


@dataclass(frozen=True, init=False)
class Run:
    """A run on disk, finished or not: `excb.Run("runs/a")` opens one, `excb.train` returns one.

    Attributes:
        folder: the run folder; of a run that is kept at a URL, its copy on this machine.
        url: where else it is kept; None for most runs.
    """

    folder: Path
    url: str | None = None

    def __init__(self, folder: str | os.PathLike[str], url: str | None = None) -> None:
        """Open a run. Raises UserError if there is none."""
        object.__setattr__(self, "folder", Path(path_text(folder, "a run is a folder")))
        object.__setattr__(self, "url", url)
        if not (self.folder / RECIPE).is_file():
            raise UserError(f"{self.folder} is not a run: it has no {RECIPE}; name a folder that excb.train wrote")

    @property
    def report(self) -> dict[str, Any] | None:
        """The content of `report.json`, with steps, seconds, the last and the best epoch; None before the end."""
        try:
            report = json_text.parse(read_bytes(self.folder / REPORT))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"cannot read {self.folder / REPORT} ({error}): train again, which writes it anew"
            ) from None
        return report if isinstance(report, dict) else None

    @property
    def finished(self) -> bool:
        """Whether all epochs are done or the run ended itself; else the same call of `excb.train` continues it."""
        return self.report is not None

    @property
    def verdict(self) -> RunVerdict | None:
        """Whether the run learned anything, against which references, and what to do; None where it says nothing."""
        try:
            return RunVerdict.from_dict((self.report or {})["verdict"])
        except (LookupError, TypeError, ValueError, AttributeError):  # not finished, or of a version without verdicts
            return None

    def load(self, **options: Any) -> "Backbone":
        """The backbone of the newest checkpoint, or of the best one of a run that is measured against its start.

        Options are those of `excb.load`, such as `network="student"`.
        """
        from excb.hub.loading import load

        return load(self.folder, **options)

    def __fspath__(self) -> str:
        return os.fspath(self.folder)

    def _repr_html_(self) -> str:
        from excb.pages.frame import data_address, render_fragment
        from excb.results.pictures import CURVES

        verdict, curves = self.verdict, self.folder / CURVES
        lines = (
            [verdict.summary] if verdict else ["finished" if self.finished else "not finished: train again to resume"]
        )
        picture = data_address(read_bytes(curves)) if curves.is_file() else None
        return render_fragment(
            "run", title=str(self), lines=[*lines, *(verdict.advice if verdict else ())], curves=picture
        )

    def __str__(self) -> str:
        return self.url or os.fspath(self.folder)


def train(
    recipe: str | Recipe,
    /,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    init: "str | Path | Run | None" = None,
    teacher: "Teachers" = None,
    listed: str | Path | None = None,
    against: "Checkpoint | Sequence[Checkpoint] | None" = (),
    quiet: bool = False,
    profile: bool = False,
    extend: int | None = None,
    **overrides: Any,
) -> Run:
    """Pretrain on images without labels, or resume the run in `out`: what `excb-pretrain RECIPE` does, in this process.

    ::

        run = excb.train("rn18_small", data="photos", out="runs/a", optim={"epochs": 50})

    An interrupt (Ctrl-C, or a notebook's stop button) lets the step finish, saves, and raises KeyboardInterrupt: the
    same call continues there. A second one does not wait. In a process that torchrun started, all ranks call this.

    Args:
        recipe: the name of a recipe (`excb-pretrain list`), or a `Recipe`.
        data: a folder of images at any depth, tar shards or "hf-stream:ID"; labels are used for figures only.
        out: the run folder, also "s3://..."; by default runs/RECIPE.
        init: a checkpoint to start from: anything that `excb.load` takes.
        teacher: a frozen network to learn from, of recipes such as "distil": anything that `excb.load` takes, a
            `Backbone`, or an `nn.Module` with a `transform`; or several in a list.
        listed: a file with one image path a line, below `data`.
        against: a checkpoint, or several in a list, that the verdict compares the run with, beside its references.
        quiet: no notes and no progress.
        profile: record a few steps and report where their time goes.
        extend: continue the finished run in `out` for so many epochs beyond the recipe's; all schedules begin anew.
        overrides: values that replace the recipe's, by section: `optim={"epochs": 50}`, `method={"clusters": 300}`.

    Returns:
        The run, finished.

    Raises:
        UserError: no such recipe, field or images, or they cannot make a run; or the loss became NaN or infinite.
        KeyboardInterrupt: the run was interrupted, and is saved.
    """
    from excb.distributed.parallel import joined
    from excb.distributed.signals import STOPPED

    from .loop import run_training

    if data is None and listed is None:
        raise UserError("name the folder of images with data=, or a list of them with listed=")
    require(extend is None or type(extend) is int, f"extend is a number of epochs, not {extend!r}")
    folder = None if data is None else path_text(data, FOLDER)
    file = None if listed is None else Path(path_text(listed, "listed is a file with one image path a line"))
    names, given = named_teachers(teacher)
    changed = changed_recipe(recipe, init=init, teachers=names, **overrides)
    place = RunLocation(Path("runs") / changed.name)
    if out is not None:
        place = run_place(path_text(out, "out is a folder or a URL"))
    compared = path_texts([] if against is None else against, "against is a checkpoint's name, path or run, or several")
    reporter = Reporter(quiet=quiet or not is_rank0())
    with joined(changed.efficiency.device, stay=True) as device:
        code = run_training(
            changed,
            images_of_run(folder, file, place, reporter),
            place,
            reporter,
            device=device,
            table=False,
            profile=profile,
            against=compared,
            second="interrupt",
            teachers=given,
            extend=extend,
        )
    if code in STOPPED:
        # The handlers are the program's own again: it hears of the signal as if it had come now, with the run saved.
        signal.raise_signal(code - 128)
        if code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
    return Run(place.folder, place.url)


def plan(
    recipe: str | Recipe,
    /,
    *,
    data: str | Path | None = None,
    init: "str | Path | Run | None" = None,
    teacher: "Teachers" = None,
    gpus: int | None = None,
    device: str | None = None,
    measure: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """The cost of a run, as `excb-pretrain plan --json` prints it: parameters, FLOPs, launches, memory, bytes sent.

    Args:
        recipe: the name of a recipe, or a `Recipe`.
        data: the images; ImageNet's number of them by default.
        init: a checkpoint to start from, which decides architecture and sizes.
        teacher: a frozen network to learn from, as `train` takes it.
        gpus: processes that share each batch.
        device: a GPU, such as "h100": does the run fit into its memory (`excb-pretrain plan --device`)?
        measure: measure steps on the CPU where there is no GPU; with a GPU they are measured anyway.
        overrides: values that replace the recipe's, by section.

    Raises:
        UserError: the recipe cannot run on these images or with this number of processes.
    """
    from excb.sources.opening import training_images

    from .data.hub_stream import refuse_stream
    from .initialise import adopted
    from .plan.devices import find_gpu
    from .plan.plan import plan_run
    from .training.pixels import with_their_pixels

    gpu = None if device is None else find_gpu(device)
    text = None if data is None else path_text(data, FOLDER)
    counted = gpus is None or (isinstance(gpus, Integral) and gpus >= 0)
    require(counted, f"gpus is a number of processes, 0 for the CPU, not {in_short(gpus)}")
    refuse_stream(text, "plan")
    names, given = named_teachers(teacher)
    changed = changed_recipe(recipe, init=init, teachers=names, **overrides)
    quiet = Reporter(quiet=True)
    images = None if text is None else with_their_pixels(training_images(text, None), changed.data, quiet)
    settled = adopted(changed, Reporter(quiet=True).note)
    return plan_run(settled, gpus, images, measure=measure, gpu=gpu, teachers=given)


def named_teachers(teacher: "Teachers") -> tuple[list[str], "dict[str, Backbone]"]:
    """The names of teachers, and those that are in memory by name: a hash of their weights is part of it.

    Raises:
        UserError: one is neither a name nor a network with a transform.
    """
    several = teacher if isinstance(teacher, list | tuple) else [] if teacher is None else [teacher]
    names: list[str] = []
    given: dict[str, Backbone] = {}
    for each in several:
        if isinstance(each, str | os.PathLike):
            names.append(os.fspath(each))
            continue
        from excb.hub.adopted import adopt
        from excb.networks.backbone import weights_hash

        backbone = adopt(each)
        name = f"memory:{type(backbone.network).__name__}@{weights_hash(backbone.network)[:12]}"
        names.append(name)
        given[name] = backbone
    return names, given


def changed_recipe(
    recipe: str | Recipe,
    *,
    init: "str | Path | Run | None" = None,
    teachers: Sequence[str] = (),
    **overrides: Any,
) -> Recipe:
    """A recipe with values replaced, each checked as on the command line.

    Args:
        recipe: its name, or a recipe.
        init: a checkpoint to start from; None leaves the recipe's.
        teachers: names of frozen networks to learn from; none leaves the recipe's.
        overrides: values by section and field.

    Raises:
        UserError: no such recipe or field, or a value of the wrong type or out of range.
    """
    base = recipe if isinstance(recipe, Recipe) else overriding.find_recipe(recipe)
    changes: dict[str, Any] = {} if init is None else {"init": path_text(init, "init is a name, a path or a run")}
    changes |= {"distil.teachers": teachers} if teachers else {}
    for section, values in overrides.items():
        if not isinstance(values, Mapping):
            fields = [name for name in overriding.field_names(base) if name.split(".")[-1] == section]
            named = fields[0].partition(".")[::2] if fields else ("optim", "epochs")
            raise UserError(
                f"{section}={values!r} is not a section of a recipe: values stand in their section, such as "
                f"{named[0]}={{{named[1]!r}: {values!r}}}"
            )
        changes |= {f"{section}.{field}": value for field, value in values.items()}
    return overriding.replace_fields(base, changes)


def images_of_run(
    data: str | None, listed: Path | None, place: RunLocation, reporter: Reporter
) -> "CodedImages | StreamImages":
    """The training images, the same on all ranks, which all call this.

    Raises:
        UserError: there are none, or the run folder is among them.
    """
    from excb.distributed.collectives import all_succeed
    from excb.images.scanning import refuse_among
    from excb.images.shards import ShardImages
    from excb.sources.opening import opened_by_all

    from .data.hub_stream import open_training

    images = opened_by_all(data, lambda: open_training(data, listed, reporter.note))
    if isinstance(images, ShardImages):
        return all_succeed(images.here)
    if not place.url:
        all_succeed(lambda: refuse_among(images, place.folder))
    return images
