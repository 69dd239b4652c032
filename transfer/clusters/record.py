"""`excb-eval clusters`: its record."""

from functools import partial
from typing import TYPE_CHECKING

from excb.console import Reporter, plural

from ..opening import task_on
from ..protocol import Measurement, Protocol, Work
from .options import ClusterInputs, ClusterOptions

if TYPE_CHECKING:
    import torch

    from excb.results.beside import FileBeside

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
    all_succeed(partial(_work_of, own, len(images)))  # refuses numbers of clusters before the network is loaded
    heads = own.of_features is None
    task = ClusterTask(**vars(task_on(shared, images, images, device, heads=heads)))
    if heads:
        all_succeed(lambda: task.heads)  # refuses a checkpoint without, before images are read
    return task


def _work_of(own: ClusterOptions, images: int) -> str:
    """The work that follows the features of so many images, in words."""
    from .partition import clusters_of

    if own.of_features is None:
        return "every image's nearest centroid"
    number = clusters_of(images, method=own.of_features, k=own.k)
    return "HDBSCAN of these features" if number is None else f"k-means of these features: {plural(number, 'cluster')}"


def _work(task: "ClusterTask", options: ClusterOptions, _reporter: Reporter) -> Work:
    return Work(task.sets, then=(_work_of(options, len(task.images)),))


def _measure(task: "ClusterTask", options: ClusterOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


def _beside(_label_sets: bool) -> "list[FileBeside]":
    from excb.results.beside import drawn_beside, table_beside, text_beside
    from excb.results.pictures import SIZES

    from .files import ATLAS, HEADER, PARQUET, TABLE

    return [
        table_beside(TABLE, "table of clusters", HEADER),
        text_beside(PARQUET, "table of clusters", *HEADER),
        text_beside(ATLAS, "atlas", "<title>Cluster atlas</title>"),
        *(drawn_beside(SIZES, suffix, named=False) for suffix in (".png", ".svg")),
    ]


CLUSTERS = Protocol(
    name="clusters",
    help="assign images to clusters: sizes, purity and an atlas",
    options=ClusterOptions,
    shared=ClusterInputs,
    open=_open,
    beside=_beside,
    measure=_measure,
    work=_work,
    out="folder",
    families=(),  # its figures are of clusters, and none ranks checkpoints
    cost=lambda _options, images: None if images.train is None else float(images.train),
    group="frozen features",
    examples=(
        "clusters --ckpt runs/a --data photos --out clusters",
        "clusters --ckpt mobilenetv2 --data photos --k 50 --out clusters",
    ),
)
