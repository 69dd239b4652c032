"""The answer to --dry-run: every option beside Detectron2's stock value, and the size of the run."""

from dataclasses import fields, replace

from excb.console import plural

from .options import DetectionOptions
from .setup.job import Job
from .setup.settings import SCHEDULES, settings_for, text_of


def show(options: DetectionOptions, job: Job) -> None:
    """Print every option with its source and meaning, and the size of the run."""
    settings = job.settings
    stock = replace(
        settings_for(options.schedule, "stock", batch=options.batch),
        input_format="BGR",
        stride_in_1x1=True,
        std=(1.0, 1.0, 1.0),
    )
    rows = []
    for entry in fields(settings):
        value, stock_value = getattr(settings, entry.name), getattr(stock, entry.name)
        different = "" if value == stock_value else text_of(stock_value)
        source = entry.metadata["source"]
        if entry.name in options.overrides:
            source = "command line"
        elif entry.name in SCHEDULES[options.schedule]:
            source = f"schedule {options.schedule}"
        rows.append([entry.name, text_of(value), different, source, entry.metadata["doc"]])
    job.reporter.table("", ["option", "value", "stock", "source", "meaning"], rows)
    for annotated in (job.train, job.val):
        if unused := annotated.unused_classes:
            few = ", ".join(unused[:3]) + (", ..." if len(unused) > 3 else "")
            job.reporter.answer(f"{annotated.listed_in}: {len(unused):,} of its categories have no object ({few})")
    images, seen = len(job.train.trainable), settings.iterations * settings.batch
    job.reporter.answer(
        f"\n{plural(settings.iterations, 'step')} of {settings.batch}, {seen / images:,.1f} epochs of "
        f"{plural(images, 'image')}\n"
        f"evaluation on {plural(len(job.val), 'image')}, {plural(len(job.val.classes), 'class', 'classes')}\n"
        f"engine {options.engine}, run folder {job.folder}"
    )
