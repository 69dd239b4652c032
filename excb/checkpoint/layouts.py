"""Recognise the layout of a checkpoint file and map its backbone onto torchvision's or timm's names, wholly or not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excb.checkpoint import layout_table
from excb.checkpoint.coverage import blueprint, cover, coverage_error, own, recognise
from excb.checkpoint.layout_table import CLASSIFIERS, USUAL, Layout, Place
from excb.checkpoint.locate import ORDER, File, Found, dictionaries_of, find, find_in_order
from excb.checkpoint.stored import Stored, Which
from excb.errors import UserError, nearest_name
from excb.networks.architecture import Architecture
from excb.networks.rules import architecture_from


def map_file(
    contents: Any,
    *,
    source: Path,
    layout: str | None = None,
    architecture: Architecture | None = None,
    network: Which = "teacher",
) -> Stored:
    """Find a backbone in a file's contents and map it onto the names of its architecture.

    Args:
        contents: of the file, as `excb.checkpoint.untrusted.read` gives them.
        source: the file.
        layout: a name in `LAYOUTS`, "order", or a place such as "state_dict:encoder."; recognised if None.
        architecture: of the backbone; recognised by the tensors if None.
        network: of a file that holds two. The teacher is what the authors evaluate, also where they have no teacher.

    Returns:
        The backbone and heads, floating point as float32. The facts are "network" and "layout": a name in `LAYOUTS`;
        "order"; or, if none is known, the place of the only network in the file.

    Raises:
        UserError: no known layout, several networks to choose from, or NaN in a tensor.
        CoverageError: any tensor missing, unexpected or misshapen.
    """
    dictionaries = dictionaries_of(contents)
    if not dictionaries:
        raise UserError(f"{source} holds no tensors by name: save the model's state_dict()")
    wanted = None if architecture is None else blueprint(architecture)
    file = File(str(source), contents, dictionaries, architecture, wanted, network)
    known_layout = _recognised(file) if layout is None else _named(layout)
    search = find_in_order if layout == ORDER else find
    result = search(file) if known_layout is None else _map_known(known_layout, file)
    name = result.layout
    if layout is None and name == "torchvision" and result.architecture.timm_name:
        name = "timm"  # the same places
    return Stored(
        source,
        own(result.tensors, result.wanted, source=file.source),
        result.architecture,
        known_layout.preprocessing if known_layout else USUAL,
        _heads(known_layout, file),
        {"network": network, "layout": name},
    )


def _named(name: str) -> Layout | None:
    """The layout of that name or place; None for "order"."""
    if ":" in name:
        return Layout(name, teacher=(name,), student=(name,), others=("",))
    layouts = {layout.name: layout for layout in layout_table.LAYOUTS}
    if name not in layouts and name != ORDER:
        names = ", ".join([*layouts, ORDER])
        raise UserError(f"no layout is called '{name}'{nearest_name(name, [*layouts, ORDER])}; there are {names}")
    return layouts.get(name)


def _recognised(file: File) -> Layout | None:
    """The first layout whose marks the file bears."""
    for layout in layout_table.LAYOUTS:
        place = _place(layout, file)
        if place is not None and file.looks_like_network(place) and all(key in file.contents for key in layout.keys):
            names = file.dictionaries[place.path]
            if all(any(name.startswith(mark) for name in names) for mark in layout.marks):
                return layout
    return None


def _place(layout: Layout, file: File) -> Place | None:
    """Where the layout keeps the asked network: the first of its places that looks like one, or holds any tensors."""
    places = [Place.parse(text) for text in (layout.teacher if file.network == "teacher" else layout.student)]
    filled = [place for place in places if place.cut(file.dictionaries)]
    return next(filter(file.looks_like_network, filled), filled[0] if filled else None)


def _map_known(layout: Layout, file: File) -> Found:
    place = _place(layout, file)
    if place is None:
        if file.network == "student" and not layout.student:
            raise UserError(f"files of the layout {layout.name} hold one network only: leave out which")
        places = " or ".join(f"'{text}'" for text in (layout.teacher if file.network == "teacher" else layout.student))
        raise UserError(f"{file.source} is not of the layout {layout.name}: no tensors at {places}")
    tensors = {_renamed(name, layout.renames): value for name, value in place.cut(file.dictionaries).items()}
    architecture = file.architecture or _architecture_of_run(file.contents) or recognise(tensors)
    if architecture is None:
        raise file.unrecognisable(tensors)
    patches = tensors.get("patch_embed.proj.weight")
    if patches is not None and patches.ndim and (heads := layout.attention_heads.get(len(patches))):
        architecture = Architecture(architecture.name, {"num_heads": heads} | architecture.options)
    wanted = file.wanted or blueprint(architecture)
    beside = {name: value for name, value in file.dictionaries[place.path].items() if not name.startswith(place.prefix)}
    rows = cover(tensors, wanted, (*CLASSIFIERS, *layout.spare)) + cover(beside, {}, layout.others)
    if rows:
        raise coverage_error(rows, tensors, architecture, expected=len(wanted), source=file.source)
    return Found(layout.name, place, tensors, architecture, wanted, rows)


def _renamed(name: str, renames: Mapping[str, str]) -> str:
    return next((new + name.removeprefix(old) for old, new in renames.items() if name.startswith(old)), name)


def _architecture_of_run(contents: Mapping[Any, Any]) -> Architecture | None:
    """What a run's checkpoint of this package says of itself."""
    match contents:
        case {"format": "excb-run", "architecture": {"name": str(), "options": dict()} as stated}:
            try:
                return architecture_from(stated)
            except ValueError:
                return None
    return None


def _heads(layout: Layout | None, file: File) -> dict[str, Tensor]:
    """Projectors, predictor, centroids and sizes of files that have them, as float32."""
    heads = layout.heads_of(file.dictionaries) if layout and layout.heads_of else {}
    wanted = {n: v.to("meta", torch.float32 if v.is_floating_point() else v.dtype) for n, v in heads.items()}
    return own(heads, wanted, source=file.source)
