"""`excb-eval layers`: its record."""

from typing import TYPE_CHECKING

from excb.console import Reporter, plural

from ..opening import labelled
from ..options import TaskOptions
from ..protocol import Family, Measurement, Protocol, Work, one_pass
from ..reporting.fields import named
from .options import LayersOptions

if TYPE_CHECKING:
    from excb.results.beside import FileBeside

    from ..task import Task


def _measure(task: "Task", options: LayersOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


def _work(task: "Task", options: LayersOptions, _reporter: Reporter) -> Work:
    from ..probes.recipes import FOLDS
    from ..probes.rows import part_extraction
    from .protocol import checked, storage

    plan = checked(task, options)
    then = [storage(task, plan)]
    if options.probe == "linear":
        heads = len(plan.linear.lr) * len(plan.linear.weight_decay)
        then.append(
            f"logistic regressions for each cell; {FOLDS} folds choose their penalty, and the cell"
            if plan.few
            else f"{plural(heads, 'head')} for each cell, {plural(plan.linear.epochs, 'epoch')}"
        )
        if options.attentive_blocks == "best":
            then.append("then patches of two blocks in another pass, with attentive probes")
    return Work(
        task.sets, then=tuple(then), extract=lambda images: part_extraction(task, images, plan.parts, plan.shapes)
    )


def _beside(label_sets: bool) -> "list[FileBeside]":
    from excb.results.beside import drawn_beside, scored_files
    from excb.results.pictures import LAYERS as HEAT_MAP

    return [*scored_files(label_sets), *(drawn_beside(HEAT_MAP, suffix) for suffix in (".png", ".svg"))]


LAYERS = Protocol(
    name="layers",
    help="every block and pooling of a backbone: the best one, chosen on held-out train images",
    options=LayersOptions,
    shared=TaskOptions,
    open=labelled(),
    beside=_beside,
    measure=_measure,
    work=_work,
    shares_task=True,
    families=(
        Family("layers", "Best block and pooling", "best layer"),
        Family("layers_default", "What the backbone returns, beside its best layer", "default layer"),
    ),
    headline="layers_top1",
    cost=one_pass,
    result_fields=lambda settings, _kind: named(settings),
    group="frozen features",
    examples=(
        "layers --ckpt timm:vit_base_patch16_224.mae --data photos --out layers.json",
        "layers --ckpt runs/a --data photos --probe knn",
    ),
)
