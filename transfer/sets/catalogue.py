"""The sets of `excb-eval sets` by name: a line each, with loader, place, split, metric and source; and groups of them.

Nothing is downloaded: images lie where torchvision puts them, below the folder that --data names.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from excb.images.image_set import Images
from excb.sources.source import Note

from . import layouts
from .metrics import MAP11, MEAN_PER_CLASS, TOP1, Metric

Open = Callable[[Path, Note], tuple[Images, Images]]


@dataclass(frozen=True)
class SetEntry:
    """A set of images."""

    name: str  # on command lines, in files and tables
    open: Open | None  # train and test images, given the folder of sets; None where no loader reads it
    place: str  # where it lies below that folder
    metric: Metric  # of its papers
    split: str  # which images are for training and for the test
    source: str  # who made the set


def _torchvision(name: str) -> Open:
    return partial(layouts.torchvision_set, name)


_FOOD = "Bossard et al., ECCV 2014"
_SETS = (
    SetEntry("food101", _torchvision("Food101"), "food-101", TOP1, "75,750 train, 25,250 test", _FOOD),
    SetEntry("cifar10", _torchvision("CIFAR10"), "cifar-10-batches-py", TOP1, "50,000 train, 10,000 test",
             "Krizhevsky, 2009"),
    SetEntry("cifar100", _torchvision("CIFAR100"), "cifar-100-python", TOP1, "50,000 train, 10,000 test",
             "Krizhevsky, 2009"),
    SetEntry("birdsnap", None, "birdsnap", TOP1, "47,386 train, 2,443 test", "Berg et al., CVPR 2014"),
    SetEntry("sun397", layouts.sun397, "SUN397, with Training_01.txt and Testing_01.txt", TOP1,
             "first partition: 19,850 train, 19,850 test", "Xiao et al., CVPR 2010"),
    SetEntry("cars", _torchvision("StanfordCars"), "stanford_cars", TOP1, "8,144 train, 8,041 test",
             "Krause et al., ICCV workshops 2013"),
    SetEntry("aircraft", _torchvision("FGVCAircraft"), "fgvc-aircraft-2013b", MEAN_PER_CLASS,
             "trainval 6,667, test 3,333; 100 variants", "Maji et al., arXiv:1306.5151"),
    SetEntry("voc2007", layouts.voc2007, "VOCdevkit/VOC2007", MAP11,
             "trainval 5,011, test 4,952; a class with difficult objects only is ignored",
             "Everingham et al., IJCV 2010"),
    SetEntry("dtd", _torchvision("DTD"), "dtd", TOP1, "first split: train and val 3,760, test 1,880",
             "Cimpoi et al., CVPR 2014"),
    SetEntry("pets", _torchvision("OxfordIIITPet"), "oxford-iiit-pet", MEAN_PER_CLASS, "trainval 3,680, test 3,669",
             "Parkhi et al., CVPR 2012"),
    SetEntry("caltech101", layouts.caltech101, "caltech101/101_ObjectCategories", MEAN_PER_CLASS,
             "30 of each of 102 folders by seed 0: 3,060 train, 6,084 test", "Fei-Fei et al., CVPR workshops 2004"),
    SetEntry("flowers", _torchvision("Flowers102"), "flowers-102", MEAN_PER_CLASS, "train and val 2,040, test 6,149",
             "Nilsback and Zisserman, ICVGIP 2008"),
    SetEntry("svhn", _torchvision("SVHN"), "train_32x32.mat and test_32x32.mat", TOP1, "73,257 train, 26,032 test",
             "Netzer et al., NIPS workshop 2011"),
)  # fmt: skip
SETS = {entry.name: entry for entry in _SETS}

# Kornblith et al., "Do better ImageNet models transfer better?", CVPR 2019, table 2, with their metrics.
_FINE_GRAINED = ("food101", "cifar10", "cifar100", "birdsnap", "sun397", "cars", "aircraft", "voc2007", "dtd", "pets",
                 "caltech101", "flowers")  # fmt: skip
# Zhai et al., "A large-scale study of representation learning with the visual task adaptation benchmark", 2019, group
# "natural", whose figures are all top-1. The benchmark fine-tunes on 1,000 images; here all train images fit a head.
_NATURAL = ("cifar100", "caltech101", "dtd", "flowers", "pets", "sun397", "svhn")
GROUPS: dict[str, tuple[SetEntry, ...]] = {
    "fine-grained": tuple(SETS[name] for name in _FINE_GRAINED),
    "vtab-natural": tuple(replace(SETS[name], metric=TOP1) for name in _NATURAL),
}
