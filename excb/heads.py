"""Projector and predictor: the multi-layer perceptrons between backbone and centroids."""

from typing import Literal

from torch import nn


class MLP(nn.Sequential):
    """`layers` hidden layers (Linear, BatchNorm, ReLU or Linear, GELU) and a last Linear: [B, inputs] -> [B, outputs].

    `input_norm` puts a BatchNorm before them, `output_norm` one without learned scale and shift after them.
    Weights start truncated-normal with standard deviation 0.02, biases at zero (DINO's head, facebookresearch/dino).
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        *,
        layers: int,
        style: Literal["batchnorm", "gelu"],
        input_norm: bool = False,
        output_norm: bool = False,
    ) -> None:
        modules: list[nn.Module] = [nn.BatchNorm1d(inputs)] if input_norm else []
        for _ in range(layers):
            modules.append(nn.Linear(inputs, hidden))
            modules += [nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)] if style == "batchnorm" else [nn.GELU()]
            inputs = hidden
        modules.append(nn.Linear(inputs, outputs))
        if output_norm:
            modules.append(nn.BatchNorm1d(outputs, affine=False))
        super().__init__(*modules)
        for module in modules:
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
