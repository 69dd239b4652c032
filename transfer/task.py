"""What every protocol starts from: a loaded backbone and labelled train and test images of the same classes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from excb.backbones import check_resolution
from excb.console import Reporter
from excb.errors import UserError, nearest_name
from excb.features import Inputs, extract
from excb.hub import Backbone, load
from excb.images import ImageSet, scan_folder
from excb.machine import choose_device, worker_count
from excb.preprocessing import Preprocessing
from excb.settings import require


@dataclass(frozen=True)
class Task:
    """A backbone and the images to judge it on.

    Args:
        backbone: in eval mode, on `device`.
        preprocessing: the checkpoint's, or what the user chose.
        train: labelled images.
        test: labelled images of the same classes; class indices are train's, and what train has not comes after.
        device: where to compute.
        batch: images at once.
        workers: processes that read images.
    """

    backbone: Backbone
    preprocessing: Preprocessing
    train: ImageSet
    test: ImageSet
    device: torch.device
    batch: int
    workers: int

    @classmethod
    def prepare(
        cls,
        checkpoint: str,
        train: Path,
        test: Path,
        *,
        network: Literal["teacher", "student"] = "teacher",
        resize: int | None = None,
        crop: int | None = None,
        device: str = "auto",
        batch: int = 64,
        workers: int | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> "Task":
        """Load and check everything before any work starts.

        Raises:
            UserError: checkpoint, images or device cannot be used.
        """
        if batch < 1 or (workers is not None and workers < 0):
            raise UserError("--batch-size must be at least 1 and --workers at least 0")
        train_set = labelled(train)
        test_set = with_classes_of(scan_folder(test), train_set, rename=rename)
        backbone = load(checkpoint, network=network)
        preprocessing = backbone.transform
        if resize is not None or crop is not None:
            preprocessing = _resized(preprocessing, resize, crop)
            check_resolution(backbone, [preprocessing.crop])
        where, count = choose_device(device), worker_count(-1 if workers is None else workers)
        return cls(backbone.to(where), preprocessing, train_set, test_set, where, batch, count)

    def features(self, images: ImageSet, name: str, reporter: Reporter) -> tuple[Tensor, Tensor]:
        """Features [N, D] and labels [N] of a set, every image once.

        Raises:
            UserError: an image cannot be read, so that figures would not be comparable.
        """
        with reporter.progress(f"features of {name}", len(images)) as bar:
            found = extract(
                self.backbone,
                Inputs(images, self.preprocessing),
                device=self.device,
                batch=self.batch,
                workers=self.workers,
                progress=bar.advance,
            )
        if found.broken:
            path, reason = next(iter(found.broken.items()))
            raise UserError(
                f"{len(found.broken)} of {len(images)} images in {images.root} cannot be read, such as {path} "
                f"({reason}): mend or remove them"
            )
        assert images.labels is not None
        return found.rows, torch.from_numpy(images.labels)

    @property
    def unknown(self) -> dict[str, int]:
        """Test images of every class that the train set has not."""
        assert self.test.labels is not None
        known, names = len(self.train.classes or ()), self.test.classes or ()
        return {name: int((self.test.labels == known + i).sum()) for i, name in enumerate(names[known:])}

    def describe(self) -> dict[str, Any]:
        """Checkpoint and data, for the result."""
        entry = self.backbone.entry
        return {
            "checkpoint": {
                "source": entry.source,
                "architecture": entry.architecture.name,
                "network": entry.network,
                "step": entry.step,
                "epoch": entry.epoch,
                "recipe": entry.recipe.get("name"),
                "preprocessing": self.preprocessing.to_dict(),
            },
            "data": {
                name: {"root": str(images.root), "images": len(images), "fingerprint": images.fingerprint}
                for name, images in (("train", self.train), ("test", self.test))
            }
            | {"classes": len(self.train.classes or ()), "unknown_classes": self.unknown},
        }


def labelled(folder: Path) -> ImageSet:
    """The images of a folder that has one sub-folder a class.

    Raises:
        UserError: there are fewer than two class folders.
    """
    images = scan_folder(folder)
    if images.labels is None:
        raise _no_classes(folder)
    return images


def with_classes_of(test: ImageSet, train: ImageSet, *, rename: Mapping[str, str] | None = None) -> ImageSet:
    """The test set with the train set's class indices; it may lack any of them.

    Classes that only the test set has are numbered after train's: no vote can reach them, so that their images count,
    as wrong. `Task.unknown` names them.

    Args:
        test: labelled by its folders.
        train: labelled images.
        rename: folders of the test set that are called otherwise in the train set.

    Raises:
        UserError: an image of the test set lies in no folder of a class, most lie in classes that the train set has
            not, or a folder to be renamed does not exist.
    """
    assert train.classes is not None
    if any("/" not in path for path in test.paths):
        raise _no_classes(test.root)
    folders = [path.partition("/")[0] for path in test.paths]
    rename = rename or {}
    for old, new in rename.items():
        for name, known, root in ((old, set(folders), test.root), (new, train.classes, train.root)):
            require(name in known, f"--rename {old}={new}: {root} has no class {name}{nearest_name(name, known)}")
    names = [rename.get(folder, folder) for folder in folders]
    unknown = sorted(set(names) - set(train.classes))
    if 2 * sum(name in unknown for name in names) > len(names):
        few = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        raise UserError(
            f"most images in {test.root} are of classes that {train.root} has not ({few}): both need the same folders"
        )
    classes = (*train.classes, *unknown)
    index = {name: number for number, name in enumerate(classes)}
    return replace(test, labels=np.array([index[name] for name in names]), classes=classes)


def _no_classes(folder: Path) -> UserError:
    return UserError(f"{folder} has no classes: put the images of each class into a sub-folder of its own")


def _resized(preprocessing: Preprocessing, resize: int | None, crop: int | None) -> Preprocessing:
    """The checkpoint's preprocessing with the sizes that the user chose; the other one follows where it must."""
    if any(side is not None and side < 8 for side in (resize, crop)):
        raise UserError("--resize and --crop must be at least 8 pixels")
    crop = crop or min(preprocessing.crop, resize or preprocessing.crop)
    resize = resize or max(preprocessing.resize, crop)
    if crop > resize:
        raise UserError(f"--crop {crop} is larger than --resize {resize}: it is cut out of the resized image")
    return replace(preprocessing, resize=resize, crop=crop)
