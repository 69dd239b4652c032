"""The names of poolings."""

from typing import Literal, get_args

Pooling = Literal["cls", "mean", "cls+mean", "gem", "last4"]  # one vector an image; "default" is always among them
DEFAULT, ATTENTIVE, LAST4 = "default", "attentive", "last4"
POOLINGS: tuple[str, ...] = get_args(Pooling)
