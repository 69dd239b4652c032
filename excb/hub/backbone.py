"""A loaded backbone, and what is known of the checkpoint it came from."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from excb.errors import require
from excb.hub.catalogue import Checkpoint
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from excb.hub.trained_heads import Heads
    from excb.images.picture import Picture
    from excb.networks.outputs import Output


@dataclass(frozen=True)
class Entry:
    """Facts about a loaded checkpoint."""

    source: str  # the file the weights came from
    architecture: Architecture  # of the built network
    network: str = "teacher"  # which of ExCB's two networks it is; the paper evaluates the teacher
    step: int | None = None  # optimization steps done
    epoch: float | None = None  # epochs done
    # Every option it was trained with, by section; empty if unknown.
    recipe: dict[str, Any] = field(default_factory=dict)
    layout: str | None = None  # of a foreign file, as it was recognised
    dropped: tuple[str, ...] = ()  # tensors of that file that were left out because the user said so
    # Its row in the catalogue: licence, published figures and more; None if it has no row.
    checkpoint: Checkpoint | None = None
    training: dict[str, Any] = field(default_factory=dict)  # its images: name, number, fingerprint; empty if unknown
    # A table for each teacher of a distilled student, by the rules of `excb.checkpoint.teachers`.
    teachers: tuple[dict[str, Any], ...] = ()
    published: dict[str, Any] = field(default_factory=dict)  # what timm's repository of the weights says: tag, license


class Backbone(nn.Module):
    """A loaded backbone: images [B, 3, H, W] -> features, by default [B, `width`].

    Attributes:
        network: the plain torchvision or timm module.
        transform: preprocessing of the checkpoint: PIL image, array of 8-bit pixels or file -> [3, H, W].
        entry: where it comes from and how it was trained.
        features: what it returns, as `load` was asked to.
        width: D, the features' width; of a pyramid four widths.
        strides: pixels of the image between neighbours in a map; empty without maps.
        heads: projectors, predictor, centroids and sizes, if `load` was asked for them.
    """

    width: Any  # an int but for pyramids
    strides: tuple[int, ...]

    def __init__(
        self, network: nn.Module, transform: Preprocessing, entry: Entry, *, features: "Output" = "pool"
    ) -> None:
        from excb.networks.outputs import output

        super().__init__()
        self.network, self.transform, self.entry = network, transform, entry
        self.features: Output = features
        self.heads: Heads | None = None
        reader = output(network, features)
        self.width, self.strides = reader.width, reader.strides
        self.__dict__["reader"] = reader  # not registered as a child: its state dict would hold `network` twice

    def forward(self, images: Tensor) -> Any:
        """Features of normalised images (see `transform`): a tensor, or a list of four for a pyramid."""
        return self.__dict__["reader"](images)

    def embed(self, images: "Iterable[Picture] | Picture", *, batch: int = 64) -> Tensor:
        """Features [N, D] float32 of images of any sizes, on the CPU, in their order.

        Args:
            images: PIL images, uint8 arrays [H, W, 3] or files, mixed as they come; or one of them.
            batch: images at once. They pass on the device that the backbone is on, in eval mode.

        Raises:
            UserError: an image is of another type or cannot be read, or the backbone returns maps instead of vectors.
        """
        from excb.networks.features import embed_images

        require(
            self.features in ("pool", "last4"),
            f"an embedding is a vector, and this backbone returns a {self.features}: load it with features='pool'",
        )
        return embed_images(self, self.transform, images, batch=batch)

    def encode(
        self,
        images: "Iterable[Picture] | Picture",
        *,
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool = False,
    ) -> "np.ndarray | Tensor":
        """`embed` with the arguments of sentence-transformers' `encode`, for programs that are written for that.

        Args:
            images: as `embed` takes them.
            batch_size: images at once.
            normalize_embeddings: whether vectors have length 1.
            convert_to_tensor: a tensor on the CPU instead of an array.

        Returns:
            float32 [N, D] of several images, [D] of one.

        Raises:
            UserError: see `embed`.
        """
        from excb.images.picture import is_picture

        rows = self.embed(images, batch=batch_size)
        if normalize_embeddings:
            rows = nn.functional.normalize(rows, dim=1)
        made = rows[0] if is_picture(images) else rows
        return made if convert_to_tensor else made.numpy()
