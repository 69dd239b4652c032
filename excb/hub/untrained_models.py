"""Untrained networks by name, "untrained:NAME": random weights of a fixed seed, to compare trained ones with."""

from pathlib import Path

from excb.checkpoint.stored import Stored
from excb.checkpoint.timm_format import published_preprocessing
from excb.hub.resolve import UNTRAINED
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.references import untrained


def read(name: str) -> Stored:
    """An untrained network, "untrained:NAME" of an architecture's name.

    It has timm's preprocessing where it is one of timm's networks, else the usual one. BatchNorm statistics are those
    of a new network; evaluations estimate them from their train images.

    Raises:
        UserError: there is no such network, or its images are not square RGB.
    """
    architecture = Architecture(name.removeprefix(UNTRAINED))
    tensors = dict(untrained.build_untrained(architecture).state_dict())
    stated = None if architecture.timm_name is None else published_preprocessing(architecture)
    facts = {"network": untrained.NETWORK}
    return Stored(Path(name), tensors, architecture, stated or Preprocessing(), facts=facts)
