"""`excb-eval clusters`: from arguments to figures and files."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from excb.console import Reporter
from excb.errors import UserError, is_rank0

from ..task_command import prepared

if TYPE_CHECKING:
    import torch

    from .command import Options


def assign_clusters(chosen: argparse.Namespace, device: "torch.device") -> int:
    """`excb-eval clusters` in this process, with the others if there are any."""
    from excb.distributed.collectives import all_succeed
    from excb.images.scanning import refuse_among

    from ..data.sources import images_of
    from . import command
    from .files import read_sizes

    reporter = Reporter(quiet=chosen.quiet or not is_rank0())
    if chosen.compare and chosen.out is None:
        raise UserError.on_all_ranks("--compare draws into a folder: name it with --out DIR")
    for place in chosen.compare:
        all_succeed(partial(read_sizes, place))  # a wrong one is told before images are read
    options = all_succeed(lambda: _options(chosen))
    images = all_succeed(lambda: images_of(chosen.data, data_root=chosen.data_root, note=reporter.note))
    if chosen.out is not None:
        all_succeed(partial(refuse_among, images, chosen.out))
    task = prepared(chosen, images, images, device, heads=True)
    heads = all_succeed(lambda: command.heads_of(task.backbone, source=chosen.ckpt))
    if chosen.dry_run:
        from ..export import describe, plan

        found = plan(task, sets=("train",))
        if is_rank0():
            reporter.answer(describe(found))
        return 0
    clusters = command.evaluate(
        heads,
        task.stored(images, "images", reporter),
        images,
        checkpoint=task.describe_checkpoint(),
        device=device,
        reporter=reporter,
        options=options,
        table=not chosen.json,
    )
    result = clusters.result
    if chosen.out is not None:
        result, files = command.write(
            clusters, images, chosen.out, reporter, name=Path(chosen.ckpt).name, options=options
        )
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if chosen.json and is_rank0():
        reporter.answer(result.to_json())
    return 0


def _options(chosen: argparse.Namespace) -> "Options":
    """What was said of the clusters; the rest is as `Options` has it."""
    from .command import Options

    said = {name: getattr(chosen, name) for name in ("duplicates", "exemplars", "megabytes", "compare")}
    return Options(**{name: value for name, value in said.items() if value is not None})
