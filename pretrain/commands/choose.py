"""`excb-pretrain choose`: what to do with your images, found out on a sample of them; or a recipe without trying."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser
from excb.console import Reporter, duration, few, plural
from excb.errors import UserError, require

from .options import add_output, add_range, check_gpus, reporter_of, require_images

if TYPE_CHECKING:
    import torch

    from excb.images.image_set import CodedImages

    from ..plan.choice import RecipeChoice

MINUTES = 10.0
FOLDER = Path("runs/choose")

DESCRIPTION = """\
Find out what to do with your images: use a trained network as it is, adapt it, distil it, or pretrain.

  excb-pretrain choose --data DIR                              tries the networks on this machine, and short runs
  excb-pretrain choose --data DIR --labels FILE.csv            judged by the labels of some images
  excb-pretrain choose --data DIR --networks mobilenetv2 timm:vit_small_patch14_dinov2.lvd142m --minutes 30
  excb-pretrain choose --data DIR --no-pilots --hours 8        a recipe for these images, machine and hours, at once

A sample of the images is divided: short runs learn from one part, and everything is measured on the other."""


def add_options(parser: Parser) -> None:
    """The images, what to try, the time and the GPUs."""
    parser.add_argument(
        "--data", metavar="DIR", help="a folder of images at any depth, tar shards, torchvision:NAME or hf:ID"
    )
    parser.add_argument("--list", type=Path, metavar="FILE", help="a file with one image path per line, below --data")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="a CSV of some images' labels, columns path and label, below --data"
    )
    parser.add_argument(
        "--networks", nargs="+", metavar="NAME", help="trained networks to try (default: those on this machine)"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, metavar="M", help="that trying may take (default: 10)"
    )
    parser.add_argument("--no-pilots", action="store_true", help="try nothing: propose a recipe at once")
    parser.add_argument("--hours", type=float, metavar="H", help="hours that a run may take")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of this machine, 0 for the CPU (default: all)")
    parser.add_argument("--out", type=Path, metavar="DIR", default=FOLDER, help="for the page (default: runs/choose)")
    parser.add_argument("--overwrite", action="store_true", help="replace what --out has of other images")
    add_range(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Print the proposal, after an experiment unless that is switched off."""
    check_gpus(options.gpus)
    require_images(options)
    require(options.minutes > 0, "--minutes must be above 0")
    if options.no_pilots and (tried := _only_for_trying(options)):
        raise UserError(f"{tried} says what to try: leave --no-pilots out")
    require(
        not (options.no_pilots and options.overwrite),
        "--overwrite is of the page, and --no-pilots writes none: leave it out",
    )
    from excb.distributed.machine import choose_device
    from excb.files.atomic import check_writable_folder
    from excb.hub.loading import require_known
    from excb.images.scanning import refuse_among
    from excb.sources.opening import training_images

    from ..data.hub_stream import refuse_stream
    from ..plan.choice import choose_recipe
    from ..recipe import DataSettings
    from ..training.pixels import with_their_pixels

    refuse_stream(options.data, "choose")
    for name in options.networks or ():  # a mistake is reported before anything is measured
        require_known(name)
    reporter = reporter_of(options)
    settings = DataSettings(range=options.range)
    images = with_their_pixels(training_images(options.data, options.list, reporter.note), settings, reporter)
    if not options.no_pilots:
        refuse_among(images, options.out)
        check_writable_folder(options.out)  # before time is spent
        if not options.overwrite:
            from ..choosing.page import refuse_other_choice

            refuse_other_choice(options.out, str(images.root))
    device = choose_device("cpu" if options.gpus == 0 else "auto")
    named = options.data or str(images.root)
    declared = () if options.range is None else (f"data.range={options.range}",)
    choice = choose_recipe(
        images, named, device, listed=options.list, gpus=options.gpus, hours=options.hours, declared=declared
    )
    if not options.no_pilots:
        return _experiment(options, images, choice, device, reporter)
    if options.out != FOLDER:
        reporter.note(f"--out {options.out}: no page is written, since --no-pilots tries nothing")
    if options.json:
        reporter.answer(json.dumps(choice.to_dict(), indent=2))
        return 0
    reporter.answer(f"{choice.command}\n")
    for reason in choice.reasons:
        reporter.answer(f"- {reason}")
    reporter.answer(f"\nIt takes about {duration(3600 * choice.hours)}, reading images not counted.")
    return 0


def _only_for_trying(options: argparse.Namespace) -> str:
    """The first option given that only an experiment reads; empty if there is none."""
    given = {"--labels": options.labels, "--networks": options.networks}
    return next((name for name, value in given.items() if value), "")


def _experiment(
    options: argparse.Namespace,
    images: "CodedImages",
    choice: "RecipeChoice",
    device: "torch.device",
    reporter: Reporter,
) -> int:
    from excb.distributed.workers import worker_count
    from excb.files import json_text
    from excb.files.atomic import write_text
    from excb.hub.resolve import networks_here
    from excb.images.pixels import pixels_of
    from excb.images.survey import with_pixels
    from excb.sources.label_files import LabelTable

    from .. import overrides
    from ..channels import fit_channels
    from ..choosing.commands import next_steps
    from ..choosing.experiment import TrialRunner
    from ..choosing.page import JSON, PAGE, action_in_words, figure_in_words, origin_of, render_choice, report_of
    from ..choosing.recommendation import recommend
    from ..choosing.sample import FEWEST, draw_images
    from ..training.statistics import measured

    pixels, labelled = pixels_of(images), None
    if options.labels is not None:
        table = LabelTable.read(options.labels, Path(options.data or options.labels.parent), options.labels.parent)
        labelled = with_pixels(table.images(None), pixels)
        reporter.note(
            f"measured: {plural(len(labelled), 'image')} with a row in {options.labels}; learned from: others"
        )
    sample = draw_images(images, labelled)
    if labelled is None and sample.labelled:
        classes = images.classes or ()
        reporter.note(
            f"labels: the {plural(len(classes), 'class', 'classes')} of these images ({few(classes)}); if folders are "
            "none, name the images with --list"
        )
    require(
        min(len(sample.measured), len(sample.learned)) >= FEWEST,
        f"an experiment needs {FEWEST} images to measure on and {FEWEST} to learn from, and here are "
        f"{len(sample.measured):,} and {len(sample.learned):,}: --no-pilots proposes a recipe without one",
    )
    base = overrides.apply(overrides.find_recipe(choice.recipe), choice.values)
    base = base.change(efficiency={"device": device.type}, data={"range": pixels.range if pixels.deep else None})
    base = measured(fit_channels(base, pixels.channels), sample.learned, reporter.note)
    runner = TrialRunner(
        sample,
        base,
        side=choice.side,
        minutes=options.minutes,
        device=device,
        workers=worker_count(base.efficiency.workers),
        out=options.out,
        reporter=reporter,
    )
    experiment = runner.run(options.networks or tuple(networks_here()), required=bool(options.networks))
    recommendation = recommend(experiment)
    steps = next_steps(experiment, recommendation, choice)
    report = report_of(experiment, recommendation, steps, choice.data)
    json_text.write_json(report, options.out / JSON)
    page, origin = options.out / PAGE, origin_of(str(images.root))
    write_text(render_choice(experiment, recommendation, steps, choice.data, origin), page)
    if options.json:
        reporter.answer(json.dumps(report, indent=2))
        return experiment.stopped
    rows = [
        [
            trial.name,
            f"{trial.value:.1f}",
            "" if (interval := trial.interval()) is None else f"{interval[0]:.1f} to {interval[1]:.1f}",
            "" if trial.cost is None else f"{trial.cost.milliseconds:.2f}",
        ]
        for trial in sorted(experiment.trials, key=lambda trial: -trial.value)
    ]
    reporter.table(figure_in_words(experiment), ["tried", "%", "95 %", "ms an image"], rows)
    reporter.answer(f"\n{action_in_words(recommendation)}: {recommendation.reason}.")
    for remark in recommendation.remarks:
        reporter.answer(f"- {remark}")
    for step in steps:
        takes = "" if step.hours is None else f", about {duration(3600 * step.hours)}"
        reporter.answer(f"\n{step.what}{' (recommended)' if step.recommended else ''}{takes}:\n  {step.command}")
    reporter.answer(f"\nThe page: {page}")
    return experiment.stopped


CHOOSE = Command(
    "choose",
    "what to do with your images, tried on a sample: use, adapt or distil a network, or pretrain",
    add_options,
    run,
    DESCRIPTION,
    group="start here",
    examples=(
        "choose --data photos",
        "choose --data photos --labels labels.csv --minutes 20",
        "choose --data photos --no-pilots --hours 8",
    ),
)
