"""The heads of a trained model, ExCB's or DINO's, as a checkpoint keeps them: from features to every centroid.

Letters: B images, K clusters, D width of the bottleneck.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excb.errors import UserError
from excb.heads import MLP
from excb.method import CentroidLayer, unit
from excb.networks.backbone import shapes_only


class NetworkHeads(nn.Module):
    """Projector h, predictor g (the student's) and centroids C of one network, in eval mode.

    Calling it gives cosine similarities z of Eq. 3, before B: features [B, width] -> [B, K]. DINO's are not cosines
    where its last layer learned how long its rows are (`norm_last_layer` off): they are those of `keys`.

    Attributes:
        gain: lengths of DINO's last layer's rows, [K]; None where all are one, as ExCB's always are.
    """

    gain: Tensor | None

    def __init__(
        self, projector: MLP, predictor: MLP | None, centroids: CentroidLayer, *, gain: Tensor | None = None
    ) -> None:
        super().__init__()
        self.projector, self.predictor, self.centroids = projector, predictor, centroids
        self.register_buffer("gain", gain)

    def keys(self) -> Tensor:
        """The matrix [K, D] that multiplies unit projections: the unit centroids, with their lengths where learned."""
        centroids: Tensor = self.centroids()
        return centroids if self.gain is None else centroids * self.gain[:, None]

    def forward(self, features: Tensor) -> Tensor:
        """Similarities of features with every centroid."""
        return F.linear(unit(self.projector(features)), self.keys())


class Heads(nn.Module):
    """Everything that training made besides the two backbones.

    Attributes:
        student: heads of the student; None where the file has only the teacher's.
        teacher: heads of the teacher, whose assignments the paper analyses.
        sizes: relative cluster sizes s, [K]; None where the file has none.
    """

    sizes: Tensor | None

    def __init__(self, student: NetworkHeads | None, teacher: NetworkHeads | None, sizes: Tensor | None) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        self.register_buffer("sizes", sizes)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], *, source: str) -> "Heads":
        """Build the heads that tensors belong to, named as in `excb.method.ExCB`; their shapes determine the layers.

        Raises:
            UserError: they are not heads of ExCB or DINO.
        """
        try:
            heads = cls(_network(tensors, "student"), _network(tensors, "teacher"), tensors.get("sizes"))
            heads.load_state_dict(dict(tensors))
        except (IndexError, KeyError, RuntimeError) as error:
            reason = str(error).strip().replace("\n", " ")
            raise UserError(
                f"the heads in {source} are not those of ExCB or DINO ({reason}): load without heads=True"
            ) from None
        return heads.eval().requires_grad_(False)


def _network(tensors: Mapping[str, Tensor], network: str) -> NetworkHeads | None:
    if not any(name.startswith(f"{network}.") for name in tensors):
        return None
    projector, predictor = (_mlp(tensors, f"{network}.{part}.") for part in ("projector", "predictor"))
    if projector is None:
        raise KeyError(f"{network} has no projector")
    with shapes_only():  # K x D random numbers would be drawn in vain
        centroids = CentroidLayer(*tensors[f"{network}.centroids.weight"].shape)
    gain = tensors.get(f"{network}.gain")
    gain = None if gain is None else torch.empty(len(gain))
    return NetworkHeads(projector, predictor, centroids.to_empty(device="cpu"), gain=gain)


def _mlp(tensors: Mapping[str, Tensor], prefix: str) -> MLP | None:
    """An MLP with the shapes of its tensors: matrices are of Linear layers, lone vectors of BatchNorms."""
    named = re.compile(re.escape(prefix) + r"(\d+)\.weight")
    weights = {int(match[1]): tensor for name, tensor in tensors.items() if (match := named.fullmatch(name))}
    linear = [index for index in sorted(weights) if weights[index].ndim == 2]
    if not linear:
        return None
    hidden, inputs = weights[linear[0]].shape
    return MLP(
        inputs,
        hidden,
        len(weights[linear[-1]]),
        layers=len(linear) - 1,
        style="batchnorm" if linear[0] + 1 in weights else "gelu",
        input_norm=linear[0] == 1,
        output_norm=f"{prefix}{linear[-1] + 1}.running_mean" in tensors,
    )
