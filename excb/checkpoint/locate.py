"""Find a network in the contents of a checkpoint file, wherever it is; without a known layout, the only one there."""

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from excb.checkpoint.coverage import COUNTER, Mismatch, blueprint, cover, coverage_error, recognise
from excb.checkpoint.dialects import usual_names
from excb.checkpoint.layout_table import SPARE, Dictionaries, NetworkPlace
from excb.console import few
from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing

ORDER = "order"  # the layout of a file whose tensors match in number, kinds, shapes and order, but not in names

# A weight in any block of a ResNet, by names or by numbers, or of a ViT, whose blocks may be in chunks, or of CAPI.
_ANCHOR = re.compile(
    r"((?:.*\.)?)(?:layer[1-4]\.\d+\.conv\d\.weight|[2-7]\.\d+\.conv\d\.weight|"
    r"blocks\.\d+\.(?:\d+\.)?attn\.qkv\.weight|encoder\.blocks\.\d+\.residual1\.fn\.q_proj\.weight)"
)
_DEPTH = 8  # of nested dictionaries


class File(NamedTuple):
    """A file, and what was asked of it."""

    source: str
    contents: Mapping[Any, Any]
    dictionaries: Dictionaries
    architecture: Architecture | None
    wanted: dict[str, Tensor] | None  # the blueprint of `architecture`
    network: str
    options: dict[str, Any]  # of the architecture, where it is recognised

    def looks_like_network(self, place: NetworkPlace) -> bool:
        """Whether a ResNet, a ViT or the wanted network seems to be at a place."""
        return place.prefix in _prefixes(self.dictionaries.get(place.path, {}), self.wanted)

    def with_options(self, recognised: Architecture | None) -> Architecture | None:
        """A recognised architecture, with the options that were asked for."""
        return recognised and replace(recognised, options=recognised.options | self.options)

    def unrecognisable(self, tensors: Iterable[str]) -> UserError:
        """The refusal of a file in which no network was found."""
        names = few(list(tensors))
        if self.architecture is None:
            return UserError(
                f"cannot tell the architecture of {self.source} by its tensors ({names}): use excb-zoo import --arch "
                "with a name of timm or torchvision"
            )
        return UserError(
            f"{self.source} holds no tensors named as those of {self.architecture.name} (but {names}): wrong --arch, "
            "or an unknown layout"
        )


class LocatedNetwork(NamedTuple):
    """A network at a place of a file, compared with its architecture."""

    layout: str
    place: NetworkPlace
    tensors: dict[str, Tensor]
    architecture: Architecture
    wanted: dict[str, Tensor]
    rows: list[Mismatch]  # what does not fit
    exact: bool = False  # whether the names tell all of the architecture, also what shapes do not show
    preprocessing: Preprocessing | None = None  # that the authors of these names evaluate with


def dictionaries_of(contents: Any) -> Dictionaries:
    """Every dictionary that holds tensors, wherever it is; one that is in several places, once.

    What DistributedDataParallel and torch.compile put before all names of a dictionary is cut. Sparse and quantised
    tensors, and those without values, are not weights.
    """
    dictionaries: Dictionaries = {}
    waiting = deque[tuple[tuple[str, ...], Any]]([((), contents)])
    seen = set[int]()
    while waiting:
        path, node = waiting.popleft()
        if not isinstance(node, Mapping) or id(node) in seen or len(path) > _DEPTH:
            continue
        seen.add(id(node))
        named = {name: value for name, value in node.items() if isinstance(name, str)}
        tensors = {name: value for name, value in named.items() if isinstance(value, Tensor) and _plain(value)}
        for wrapper in ("module.", "_orig_mod.", "module."):
            if all(name.startswith(wrapper) for name in tensors):
                tensors = {name.removeprefix(wrapper): value for name, value in tensors.items()}
        if tensors:
            dictionaries[path] = tensors
        waiting.extend(((*path, name), value) for name, value in named.items())
    return dictionaries


def _plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _prefixes(names: Iterable[str], wanted: Mapping[str, Tensor] | None) -> set[str]:
    """How names begin where a network may be: before a ResNet's or a ViT's layers, or before half of `wanted`."""
    prefixes = {match[1] for name in names if (match := _ANCHOR.fullmatch(name))}
    if wanted is not None:
        starts = ((name, start) for name in names for start in (0, *(m.end() for m in re.finditer(r"\.", name))))
        counts = Counter(name[:start] for name, start in starts if name[start:] in wanted)
        prefixes |= {prefix for prefix, count in counts.items() if 2 * count >= len(wanted)}
    return prefixes


def locate_network(file: File) -> LocatedNetwork:
    """The only network of a file, by names that end as its architecture's, or else by the order of its tensors.

    Raises:
        UserError: there are none or several.
        CoverageError: the network that comes nearest is not covered wholly.
    """
    candidates = []
    for path, tensors in file.dictionaries.items():
        for prefix in sorted(_prefixes(tensors, file.wanted)):
            place = NetworkPlace(path, prefix)
            cut, known, evaluated = usual_names(place.cut(file.dictionaries))
            if architecture := file.architecture or file.with_options(known or recognise(cut)):
                wanted = file.wanted or blueprint(architecture)
                rows = cover(cut, wanted, SPARE)
                exact = known is not None and file.architecture is None
                candidates.append(LocatedNetwork(str(place), place, cut, architecture, wanted, rows, exact, evaluated))
    complete = [candidate for candidate in candidates if not candidate.rows]
    if matches := complete or list(_ordered(file)):
        return _only(matches, file)
    if not candidates:
        raise file.unrecognisable(name for tensors in file.dictionaries.values() for name in tensors)
    best = min(candidates, key=lambda candidate: len(candidate.rows))
    raise coverage_error(best.rows, best.tensors, best.architecture, expected=len(best.wanted), source=file.source)


def find_in_order(file: File) -> LocatedNetwork:
    """The only network of a file by the order of its tensors.

    Raises:
        UserError: there are none or several, or the architecture is not known.
    """
    if file.architecture is None:
        raise UserError(
            "tensors can be matched by their order only if the architecture is known: use excb-zoo import --arch"
        )
    if matches := list(_ordered(file)):
        return _only(matches, file)
    raise UserError(
        f"{file.source} does not hold the tensors of {file.architecture.name} in its order: number, kinds and shapes "
        "must be equal"
    )


def _ordered(file: File) -> Iterator[LocatedNetwork]:
    """Dictionaries whose tensors are the wanted ones in number, kinds, shapes and order; a classifier may follow."""
    if file.architecture is None or file.wanted is None:
        return
    for path, tensors in file.dictionaries.items():
        kinds = [_kind(name) for name in tensors]
        names = [name for name in file.wanted if _kind(name) != COUNTER or COUNTER in kinds]
        first, rest = kinds[: len(names)], kinds[len(names) :]
        if first == [_kind(name) for name in names] and rest in ([], ["weight"], ["weight", "bias"]):
            renamed = dict(zip(names, tensors.values(), strict=False))
            if not cover(renamed, file.wanted):
                yield LocatedNetwork(ORDER, NetworkPlace(path, ""), renamed, file.architecture, file.wanted, [])


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _only(candidates: list[LocatedNetwork], file: File) -> LocatedNetwork:
    """The one asked for, if names distinguish teacher and student; otherwise the one that all of them equal."""
    asked = [candidate for candidate in candidates if file.network in candidate.place.words]
    if not asked and file.network == "teacher":
        asked = [candidate for candidate in candidates if "student" not in candidate.place.words]
    if not asked:
        holds = "no tensors named as a student's" if file.network == "student" else "the student's tensors only"
        raise UserError(f"{file.source} holds {holds}: ask for the other network")
    first = asked[0]
    if any(not _same(first, other) for other in asked[1:]):
        places = " or ".join(f"--layout '{candidate.place}'" for candidate in asked)
        raise UserError(
            f"{file.source} holds {len(asked)} different networks: choose one with excb-zoo import {places}"
        )
    return first


def _same(one: LocatedNetwork, other: LocatedNetwork) -> bool:
    names = one.tensors.keys() & one.wanted.keys()
    return one.wanted.keys() == other.wanted.keys() and all(
        name in other.tensors and torch.equal(one.tensors[name], other.tensors[name]) for name in names
    )
