"""torch.hub's entry points: `torch.hub.load(CLONE, "backbone", NAME, source="local")`."""

import typing  # as a whole: torch.hub lists every public function and class of this file as an entry point

# torch.hub puts this clone first on the path while it imports this file, so this is the clone's own package.
import excb

if typing.TYPE_CHECKING:
    from excb.hub.catalogue import Checkpoint

dependencies = ["huggingface_hub", "numpy", "PIL", "rich", "safetensors", "timm", "torch", "torchvision"]


def backbone(name: str, **options: typing.Any) -> "excb.Backbone":
    """A checkpoint's backbone, in eval mode: what `excb.load` gives.

    Args:
        name: a name of `checkpoints()`, or anything else that `excb.load` takes.
        options: of `excb.load`, such as features="map" or img_size=384.

    Raises:
        UserError: as `excb.load` does.
    """
    return excb.load(name, **options)


def checkpoints() -> "list[Checkpoint]":
    """All checkpoints that have a name."""
    return excb.checkpoints()
