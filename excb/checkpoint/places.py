"""Places in a checkpoint file: where a network's tensors are in its nested dictionaries."""

import re
from typing import NamedTuple

from torch import Tensor

Dictionaries = dict[tuple[str, ...], dict[str, Tensor]]  # a file's tensors by the names of the dictionaries around them


class Place(NamedTuple):
    """Where a network's tensors are in a file."""

    path: tuple[str, ...]
    prefix: str

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Read "outer>inner:prefix."."""
        path, _, prefix = text.rpartition(":")
        return cls(tuple(name for name in path.split(">") if name), prefix)

    def __str__(self) -> str:
        return f"{'>'.join(self.path)}:{self.prefix}"

    @property
    def words(self) -> set[str]:
        """The words that its names consist of."""
        return set(re.split(r"[\W_]", str(self)))

    def cut(self, dictionaries: Dictionaries) -> dict[str, Tensor]:
        """The tensors at this place, by their names without the prefix."""
        tensors = dictionaries.get(self.path, {}).items()
        return {name.removeprefix(self.prefix): value for name, value in tensors if name.startswith(self.prefix)}
