"""A set of images whose names and labels would break a page or a table that takes them for markup or formulas."""

from pathlib import Path

import numpy as np

from excb.images.image_set import ImageSet
from excb.transfer.clusters.assignment import ClusterAssignment
from tests.transfer.labelled_images import write_folder

CLASSES = (
    "</script><script>window.hurt=1</script>",
    '=HYPERLINK("http://x")',
    "<img src=x onerror=window.hurt=2>",
    "__proto__",
    "zo\u00eb, \u201cquoted\u201d \u2028 \U0001f34e",
    "{{js}}",
    "]]><!--",
)
NAMES = (
    "</SCRIPT ><script>window.hurt=3</script>.png",
    "=1+1.png",
    "a\"b'c`${window.hurt=4}.png",
    "line\nbreak,comma.png",
    "-2.png",
    "\udcff\udcfe.png",  # bytes that are not UTF-8
    "@x\t.png",
)


def hostile_set(folder: Path) -> tuple[ImageSet, ClusterAssignment]:
    """Fourteen images that can be opened, in ten clusters of which the last four are empty."""
    write_folder(folder, each=2)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))

    class Renamed(ImageSet):
        def file(self, index: int) -> Path:
            return folder / files[index]

    paths = [f"{number}-{name}" if number >= 7 else name for number, name in enumerate(NAMES * 2)]
    images = Renamed(folder, paths, np.arange(14) % 7, CLASSES)
    first = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 5])
    random = np.random.default_rng(0)
    similarity, margin = random.random((2, 14)).astype(np.float32)
    return images, ClusterAssignment(10, first, (first + 1) % 10, similarity, margin)
