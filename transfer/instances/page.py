"""A page that shows some queries beside the images nearest to them, each marked as right, junk or wrong."""

from functools import partial

import numpy as np

from excb.console import plural
from excb.images.image_set import Images
from excb.pages.gallery import GallerySection, Picture, PictureGroup, render_gallery
from excb.results.result import ResultRecord, folder_name

from .scores import InstanceMeasurements
from .setup import InstanceTask

QUERIES, NEAREST = 24, 8  # that the page shows: some two megabytes of pictures


def render_queries(task: InstanceTask, measured: InstanceMeasurements, result: ResultRecord) -> str:
    """The page.

    Args:
        task: backbone and set.
        measured: what was measured on it.
        result: of it.
    """
    instances, queries = task.instances, task.test
    shown = sorted({int(place) for place in np.linspace(0, len(queries) - 1, min(QUERIES, len(queries)))})
    figures = ", ".join(
        f"{name.partition('_')[2].replace('_', ' ')} {value:.1f}" for name, value in result.figures.items()
    )
    left = len(queries) - len(shown)
    weights = str(result.checkpoint.get("weights_sha256", ""))[:16]
    return render_gallery(
        f"Nearest images, {folder_name(str(queries.root))}",
        [_query(task, measured, query) for query in shown],
        heading="Nearest images of queries",
        subtitles=[
            f"{plural(len(queries), 'query', 'queries')} in a gallery of "
            f"{plural(result.data['train']['images'], 'image')}",
            f"{result.checkpoint.get('name')}: {figures} %",
        ],
        notes=[f"{plural(left, 'other query has', 'other queries have')} no picture here."] if left else [],
        footer=f"{instances.family}; weights {weights}; by excb-eval instances.",
    )


def _query(task: InstanceTask, measured: InstanceMeasurements, query: int) -> GallerySection:
    instances, candidates = task.instances, measured.candidates
    junk = np.setdiff1d(instances.judged(query), instances.relevant(query))
    near = []
    for image, similarity, right in zip(
        candidates.images[query, :NEAREST].tolist(),
        candidates.similarities[query, :NEAREST].tolist(),
        candidates.right[query, :NEAREST].tolist(),
        strict=True,
    ):
        images, place = _place(task, image)
        mark = "right" if right else "junk" if image in junk else "wrong"
        near.append(Picture.of(images.paths[place], partial(images.open, place), mark=f"{mark} {similarity:.3f}"))
    name = instances.queries.paths[query]
    caption = f"query, {int(candidates.positives[query]):,} relevant"
    asked = Picture.of(name, partial(instances.queries.open, query), caption=caption)
    return GallerySection(name, [PictureGroup(near, asked)])


def _place(task: InstanceTask, image: int) -> tuple[Images, int]:
    """The set that an image of the whole gallery is in, and its place there."""
    gallery = task.train
    if image < len(gallery) or task.distractors is None:
        return gallery, image
    return task.distractors, image - len(gallery)
