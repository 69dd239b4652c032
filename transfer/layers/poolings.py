"""The names of poolings."""

DEFAULT, ATTENTIVE, LAST4 = "default", "attentive", "last4"
POOLINGS = ("cls", "mean", "cls+mean", "gem", LAST4)  # one vector an image; "default" is always among them
