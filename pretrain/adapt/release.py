"""Which layers of the backbone learn: the others keep their weights and their BatchNorm statistics, bit for bit."""

from collections.abc import Mapping

from torch.nn.modules.batchnorm import _BatchNorm

from excb.method import ExCB


class Release:
    """Freezes and releases layers of the backbone.

    A frozen layer gets no gradient, so the backward pass ends at the first layer that learns. Its BatchNorm uses the
    running statistics, in the student and in the teacher.

    Args:
        model: on its device, with its final modules.
        depths: of the backbone's parameters and buffers, see `excb.networks.depth`.
        frozen_statistics: keep BatchNorm's statistics in layers that learn, too.
    """

    def __init__(self, model: ExCB, depths: Mapping[str, int], *, frozen_statistics: bool) -> None:
        # Parameters that low-rank updates leave as they are never learn.
        student, teacher = model.student.backbone, model.teacher.backbone
        self._parameters = [(depths[name], one) for name, one in student.named_parameters() if one.requires_grad]
        self._norms = [
            (max(depths[f"{name}.{tensor}"] for tensor in module.state_dict()), module)
            for network in (student, teacher)
            for name, module in network.named_modules()
            if isinstance(module, _BatchNorm) and module.state_dict()
        ]
        self._frozen_statistics = frozen_statistics
        self._first: int | None = None

    def apply(self, first: int) -> bool:
        """Let the layers from this depth on learn, and no other. Returns whether that is a change."""
        if first == self._first:
            return False
        self._first = first
        for depth, parameter in self._parameters:
            parameter.requires_grad_(depth >= first)
        for depth, norm in self._norms:
            norm.train(depth >= first and not self._frozen_statistics)
        return True
