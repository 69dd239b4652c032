"""The answer to --dry-run: every option beside Detectron2's stock value, and the size of the run."""

from dataclasses import fields, replace
from typing import Any

from excb.console import few, plural

from .options import DetectionOptions
from .setup.job import Job
from .setup.settings import SCHEDULES, settings_for, text_of


def show(options: DetectionOptions, job: Job) -> None:
    """Print every option with its source and meaning, and the size of the run."""
    settings = job.settings
    rows = [
        [name, text_of(value), "" if value == stock else text_of(stock), source, meaning]
        for name, value, stock, source, meaning in _options(options, job)
    ]
    job.reporter.table("", ["option", "value", "stock", "source", "meaning"], rows)
    for annotated in (job.train, job.val):
        if unused := annotated.unused_classes:
            job.reporter.answer(
                f"{annotated.listed_in}: {len(unused):,} of its categories have no object ({few(unused)})"
            )
    images, seen = len(job.train.trainable), settings.iterations * settings.batch
    job.reporter.answer(
        f"\n{plural(settings.iterations, 'step')} of {settings.batch}, {seen / images:,.1f} epochs of "
        f"{plural(images, 'image')}\n"
        f"evaluation on {plural(len(job.val), 'image')}, {plural(len(job.val.classes), 'class', 'classes')}\n"
        f"engine {options.engine}, run folder {job.folder}"
    )


def plan_as_dict(options: DetectionOptions, job: Job) -> dict[str, Any]:
    """The same, ready for JSON."""
    rows = _options(options, job)
    return {
        "options": {
            name: {"value": value, "stock": stock, "source": source, "meaning": meaning}
            for name, value, stock, source, meaning in rows
        },
        "train": {"images": len(job.train.trainable), "categories_without_object": list(job.train.unused_classes)},
        "val": {"images": len(job.val), "categories_without_object": list(job.val.unused_classes)},
        "classes": len(job.val.classes),
        "engine": options.engine,
        "run": str(job.folder),
    }


def _options(options: DetectionOptions, job: Job) -> list[tuple[str, Any, Any, str, str]]:
    """Name, value, Detectron2's stock value, source and meaning of every option."""
    stock = replace(
        settings_for(options.schedule, "stock", batch=options.batch),
        input_format="BGR",
        stride_in_1x1=True,
        std=(1.0, 1.0, 1.0),
    )
    rows = []
    for entry in fields(job.settings):
        source = entry.metadata["source"]
        if entry.name in options.overrides:
            source = "command line"
        elif entry.name in SCHEDULES[options.schedule]:
            source = f"schedule {options.schedule}"
        value, usual = getattr(job.settings, entry.name), getattr(stock, entry.name)
        rows.append((entry.name, value, usual, source, entry.metadata["doc"]))
    return rows
