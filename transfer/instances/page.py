"""A page that shows some queries beside the images nearest to them, each marked as right, junk or wrong."""

import numpy as np
from PIL import Image

from excb.images.decoding import BrokenImageError
from excb.images.image_set import Images
from excb.results.result import Result, folder_name

from ..reporting.markup import Html, element, join, page
from ..reporting.thumbnails import thumbnail
from .protocol import Measured
from .setup import InstanceTask

QUERIES, NEAREST = 24, 8  # that the page shows: some two megabytes of pictures


def render(instances: InstanceTask, measured: Measured, result: Result) -> str:
    """The page.

    Args:
        instances: backbone and set.
        measured: what was measured on it.
        result: of it.
    """
    whole, queries = instances.instances, instances.instances.queries
    shown = sorted({int(place) for place in np.linspace(0, len(queries) - 1, min(QUERIES, len(queries)))})
    figures = ", ".join(
        f"{name.partition('_')[2].replace('_', ' ')} {value:.1f}" for name, value in result.figures.items()
    )
    gallery = result.data["train"]["images"]
    head = element(
        "header",
        element("h1", "Nearest images of queries"),
        element("p", f"{len(queries):,} queries in a gallery of {gallery:,} images", class_="subtitle"),
        element("p", f"{result.checkpoint.get('name')}: {figures} %", class_="subtitle"),
        class_="masthead",
    )
    sections = [_query(instances, measured, query) for query in shown]
    left = len(queries) - len(shown)
    more = element("p", f"{left:,} other queries have no picture here.", class_="note") if left else None
    weights = str(result.checkpoint.get("weights_sha256", ""))[:16]
    foot = element("footer", f"{whole.family}; weights {weights}; by excb-eval instances.")
    return page(f"Nearest images, {folder_name(str(queries.root))}", join(head, *sections, more, foot), style="search")


def _query(instances: InstanceTask, measured: Measured, query: int) -> Html:
    whole, found = instances.instances, measured.candidates
    junk = np.setdiff1d(whole.judged(query), whole.relevant(query))
    pictures = []
    for image, similarity, right in zip(
        found.images[query, :NEAREST].tolist(),
        found.similarities[query, :NEAREST].tolist(),
        found.right[query, :NEAREST].tolist(),
        strict=True,
    ):
        images, place = _place(instances, image)
        mark = "right" if right else "junk" if image in junk else "wrong"
        caption = join(element("b", f"{mark} {similarity:.3f}"), " ", images.paths[place])
        pictures.append(_picture(images, place, caption))
    name = whole.queries.paths[query]
    body = element(
        "div",
        _picture(whole.queries, query, f"query, {int(found.positives[query]):,} relevant"),
        element("div", *pictures, class_="pictures"),
        class_="query",
    )
    return element("section", element("h2", name), body, class_="panel")


def _place(instances: InstanceTask, image: int) -> tuple[Images, int]:
    """The set that an image of the whole gallery is in, and its place there."""
    gallery = instances.instances.gallery
    if image < len(gallery) or instances.distractors is None:
        return gallery, image
    return instances.distractors, image - len(gallery)


def _picture(images: Images, index: int, caption: Html | str) -> Html:
    """An image with its caption; one that has gone since has a grey square."""
    name = images.paths[index]
    try:
        image: Image.Image | None = images.open(index)
    except BrokenImageError:
        image = None
    shown = (
        element("div", class_="gone", role="img", aria_label=f"{name} is not there")
        if image is None
        else element("img", src=thumbnail(image), alt=name, loading="lazy")
    )
    return element("figure", shown, element("figcaption", caption, title=name))
