"""Embeddings as a data set of FiftyOne, to look at in its app."""

from pathlib import Path
from typing import Any

from excb.console import plural
from excb.errors import UserError

from .exported_images import ExportedImages

EMBEDDING, LABEL = "embedding", "ground_truth"  # fields of its samples


def make_fiftyone(images: ExportedImages, name: str | None) -> Any:
    """A `fiftyone.Dataset`: a sample for every image, with its vector in `embedding` and its label in `ground_truth`.

    FiftyOne's similarity and visualization take `embeddings="embedding"`.

    Args:
        images: to hand over; they must be files.
        name: under which FiftyOne keeps the data set; without one, it forgets it when Python ends.

    Raises:
        UserError: FiftyOne is not installed, it has a data set of that name, or the images are not files.
    """
    try:
        import fiftyone
    except ImportError:
        raise UserError("FiftyOne is not installed: run `pip install 'excb[fiftyone]'`") from None
    missing = [row for row in range(len(images)) if not Path(images.file(row)).is_file()]
    if missing:
        raise UserError(
            f"FiftyOne shows files, and {plural(len(missing), 'image is', 'images are')} none, such as "
            f"{images.file(missing[0])}"
        )
    if name is not None and fiftyone.dataset_exists(name):
        raise UserError(f"FiftyOne has a data set {name} already: name another, or delete it")
    dataset = fiftyone.Dataset(name, persistent=name is not None)
    dataset.info = {"excb": images.model}
    for numbers, vectors in images.parts():
        samples = []
        for row, vector in zip(numbers, vectors, strict=True):
            label = images.label(row)
            known = {} if label is None else {LABEL: fiftyone.Classification(label=label)}
            samples.append(fiftyone.Sample(images.file(row), **{EMBEDDING: vector}, **known))
        dataset.add_samples(samples, progress=False)
    return dataset
