"""Torchvision's names of a ResNet's tensors as Detectron2 calls them, in any of its backbones: C4, DC5 or FPN."""

import re
from collections.abc import Mapping

from torch import Tensor

from excb.errors import UserError

_NAME = re.compile(
    r"(?:layer(?P<stage>[1-4])\.(?P<block>\d+)\.)?"
    r"(?:(?P<kind>conv|bn)(?P<number>[1-3])|downsample\.(?P<part>[01]))\."
    r"(?P<leaf>weight|bias|running_mean|running_var)",
    re.ASCII,
)


def detectron2_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a torchvision ResNet without its classifier.

    Counts of batches, which Detectron2's frozen layers do not have, are left out.

    Raises:
        UserError: a name is none of a torchvision ResNet's.
    """
    return {detectron2_name(name): value for name, value in tensors.items() if not name.endswith("num_batches_tracked")}


def detectron2_name(name: str) -> str:
    """Detectron2's name for one tensor: "layer1.0.bn2.bias" -> "res2.0.conv2.norm.bias".

    Raises:
        UserError: the name is none of a torchvision ResNet's.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(f"'{name}' is not a tensor of a torchvision ResNet's backbone: Detectron2 has no name for it")
    place = f"res{int(match['stage']) + 1}.{match['block']}" if match["stage"] else "stem"
    layer = f"conv{match['number']}" if match["number"] else "shortcut"
    is_norm = match["kind"] == "bn" or match["part"] == "1"
    return f"{place}.{layer}{'.norm' if is_norm else ''}.{match['leaf']}"
