"""Passes of networks that do not change: in parts, without BatchNorm, in half precision."""
