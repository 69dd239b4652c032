"""`excb-eval clusters`: its record."""

from functools import partial
from typing import TYPE_CHECKING

from excb.console import Reporter

from ..opening import task_on
from ..protocol import Measurement, Protocol
from .options import ClusterInputs, ClusterOptions

if TYPE_CHECKING:
    import torch

    from .task import ClusterTask


def _open(shared: ClusterInputs, own: ClusterOptions, device: "torch.device", reporter: Reporter) -> "ClusterTask":
    from excb.distributed.collectives import all_succeed
    from excb.images.image_set import ledger_of

    from ..data.sources import images_of, refuse_idle_root
    from .files import read_sizes
    from .task import ClusterTask

    for folder in own.compare:
        all_succeed(partial(read_sizes, folder))  # reports a wrong one before images are read
    all_succeed(partial(refuse_idle_root, shared.data_root, shared.data))
    images = all_succeed(partial(images_of, shared.data, data_root=shared.data_root, note=reporter.note))
    ledger_of(images).of("images").tell(reporter)
    heads = own.of_features is None
    task = ClusterTask(**vars(task_on(shared, images, images, device, heads=heads)))
    if heads:
        all_succeed(lambda: task.heads)  # refuses a checkpoint without, before images are read
    return task


def _measure(task: "ClusterTask", options: ClusterOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


CLUSTERS = Protocol(
    name="clusters",
    help="assign images to clusters: sizes, purity and an atlas",
    options=ClusterOptions,
    shared=ClusterInputs,
    open=_open,
    measure=_measure,
    out="folder",
    families=(),  # its figures are of clusters, and none ranks checkpoints
    cost=lambda _options, images: None if images.train is None else float(images.train),
    group="frozen features",
    examples=(
        "clusters --ckpt runs/a --data photos --out clusters",
        "clusters --ckpt mobilenetv2 --data photos --k 50 --out clusters",
    ),
)
