"""A full checkpoint and the images to assign to its clusters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from torch import Tensor

from excb.errors import UserError
from excb.hub.trained_heads import NetworkHeads
from excb.images.image_set import Images
from excb.method import EMPTY_WEIGHT, Form, balancing

from ..task import Task


@dataclass(frozen=True)
class ClusterTask(Task):
    """A task on one set of images, which stands for `train` and `test`; it may have no labels."""

    @property
    def images(self) -> Images:
        """The set."""
        return self.train

    @property
    def sets(self) -> dict[str, Images]:
        """The set, by its name in messages."""
        return {"images": self.images}

    def describe(self) -> dict[str, Any]:
        """Checkpoint and data, for the result."""
        images = self.images
        facts = {"root": str(images.root), "images": len(images), "fingerprint": images.fingerprint}
        data = {"images": facts, "classes": len(images.classes or ())}
        return {"checkpoint": self.describe_checkpoint(), "data": data, "ledger": self.ledger}

    @property
    def heads(self) -> NetworkHeads:
        """Projector and centroids of the loaded network.

        Raises:
            UserError: the checkpoint has those of the other network only, or was trained without clusters.
        """
        backbone, source = self.backbone, self.backbone.entry.source
        assert backbone.heads is not None, "load with heads=True"
        if self._method.get("clustering") is False:
            raise UserError(
                f"{source} was trained without clusters (method.clustering=false): its centroids are random; --method "
                "kmeans or hdbscan clusters its features"
            )
        network = backbone.entry.network
        heads = backbone.heads.student if network == "student" else backbone.heads.teacher
        if heads is None:
            raise UserError(f"{source} has no projector and centroids of the {network}: choose the other --network")
        return heads

    @property
    def balancing(self) -> tuple[Tensor, Tensor] | None:
        """B's scale and offset [K] for the checkpoint's cluster sizes s; None without s, or with another balancer.

        An empty cluster has the mean weight that training draws for one, so that ties break by similarity here as well.
        """
        sizes = self.backbone.heads.sizes if self.backbone.heads is not None else None
        form = self._method.get("balancing", "linear")
        if sizes is None or form not in get_args(Form):
            return None
        return balancing(sizes, cast("Form", form), empty_weight=EMPTY_WEIGHT / 2)

    @property
    def _method(self) -> Mapping[str, Any]:
        """The method's settings in the checkpoint's recipe; empty where it has none."""
        recipe = self.backbone.entry.recipe
        method = recipe.get("method") if isinstance(recipe, Mapping) else None
        return method if isinstance(method, Mapping) else {}
