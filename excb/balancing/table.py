"""The table of balancers: one line each. Importing it needs no torch."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class BalancerEntry:
    """A balancer that `method.balancing` names, with what must be known of it before torch is loaded.

    What needs torch, such as its cost, is stated by its class: see `excb.balancing.interface.Balancer`.
    """

    module: str | None  # where it is; None: a form of ExCB's own B, in `excb.method`
    class_name: str = ""  # its class there
    options: tuple[str, ...] = ()  # the fields of `MethodSettings` that the class takes, in this order
    bounded: bool = False  # it keeps similarities in [-1, 1], so `method.winner_gain` and `method.clamp` make sense
    whole_batch: bool = False  # it must see the whole batch at once, so `efficiency.accumulate` must be 1
    title: str = ""  # in the study `balancers`; without one it is not part of the study

    def build(self, settings: Any) -> Any:
        """Make the balancer with the options that `MethodSettings` hold."""
        assert self.module is not None
        return getattr(import_module(self.module), self.class_name)(*(getattr(settings, name) for name in self.options))


_SINKHORN = ("teacher_temperature", "sinkhorn_iterations")
_MIRA = ("teacher_temperature", "mira_beta", "mira_iterations", "mira_beta_start")

BALANCERS = {
    "linear": BalancerEntry(None, bounded=True, title="ExCB"),
    "squared": BalancerEntry(None, bounded=True),
    "none": BalancerEntry("excb.balancing.none", "NoBalancing", bounded=True, title="none"),
    "pseudocode": BalancerEntry(None, bounded=True),
    "centering": BalancerEntry(
        "excb.balancing.centering", "Centering", ("clusters", "center_momentum"), title="centering (DINO)"
    ),
    "sinkhorn": BalancerEntry(
        "excb.balancing.sinkhorn", "SinkhornKnopp", _SINKHORN, whole_batch=True, title="Sinkhorn-Knopp (SwAV)"
    ),
    "mira": BalancerEntry("excb.balancing.mira", "MIRA", _MIRA, whole_batch=True, title="fixed point (MIRA)"),
}
