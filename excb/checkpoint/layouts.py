"""Recognise the layout of a checkpoint file and map its backbone onto torchvision's or timm's names, wholly or not."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excb.checkpoint import layout_table
from excb.checkpoint.coverage import blueprint, cover, coverage_error, is_usual_vit, own, recognise
from excb.checkpoint.dialects import usual_names
from excb.checkpoint.layout_table import SPARE, USUAL, Dictionaries, Layout, NetworkPlace
from excb.checkpoint.locate import ORDER, File, LocatedNetwork, dictionaries_of, find_in_order, locate_network
from excb.checkpoint.stored import Stored, Which
from excb.checkpoint.timm_format import published_preprocessing
from excb.checkpoint.unseen import settled
from excb.errors import UserError, nearest_name
from excb.networks.architecture import POSITIONS, SMALL_STEM, Architecture
from excb.networks.outputs import resized_preprocessing
from excb.networks.preprocessing import Preprocessing
from excb.networks.rules import architecture_from, preprocessing_from


def map_file(
    contents: Any,
    *,
    source: Path,
    layout: str | None = None,
    architecture: Architecture | None = None,
    network: Which = "teacher",
    options: Mapping[str, Any] | None = None,
    exact: bool = False,
    drop: Collection[str] = (),
) -> Stored:
    """Find a backbone in a file's contents and map it onto the names of its architecture.

    Args:
        contents: of the file, as `excb.checkpoint.untrusted.read_untrusted` gives them.
        source: the file.
        layout: a name in `LAYOUTS`, "order", or a place such as "state_dict:encoder."; recognised if None.
        architecture: of the backbone; recognised by the tensors if None.
        network: of a file that holds two. The teacher is what the authors evaluate, also where they have no teacher.
        options: of an architecture that is recognised, such as the number of heads, which no shape shows.
        exact: whether `architecture` is meant with all that it does not mention, as a row of the catalogue is. timm's
            own names always are.
        drop: names of tensors, or of modules, that are left out.

    Returns:
        The backbone and heads, floating point as float32. The facts are "network" and "layout": a name in `LAYOUTS`;
        "order"; or, if none is known, the place of the only network in the file; and "dropped", names, where there
        are any.

    Raises:
        UserError: no known layout, several networks to choose from, NaN in a tensor, nothing to drop, or neither file
            nor layout nor caller says what shapes do not show.
        CoverageError: any tensor missing, unexpected or misshapen.
    """
    dictionaries = dictionaries_of(contents)
    if not dictionaries:
        raise UserError(f"{source} holds no tensors by name: save the model's state_dict()")
    dictionaries, dropped = _without(dictionaries, drop, source=source)
    stated = _stated_by_run(contents) if architecture is None else None
    architecture = architecture if stated is None else stated[0]
    wanted = None if architecture is None else blueprint(architecture)
    file = File(str(source), contents, dictionaries, architecture, wanted, network, dict(options or {}))
    known_layout = _recognised(file) if layout is None else _named(layout)
    search = find_in_order if layout == ORDER else locate_network
    result = search(file) if known_layout is None else _map_known(known_layout, file)
    name = result.layout
    exact = (
        exact
        or result.exact
        or stated is not None
        or (architecture is not None and architecture.name.startswith("timm:"))
    )
    located = settled(
        result.architecture,
        result.tensors,
        contents,
        heads=known_layout.attention_heads if known_layout else {},
        exact=exact,
        source=str(source),
    )
    if known_layout is not None and not exact:
        located = _with_positions(located, known_layout)
    if stated is None:
        preprocessing, origin = _preprocessing(known_layout, located, result.preprocessing)
    else:
        preprocessing, origin = stated[1], "as the run states"
    if layout is None and name == "torchvision" and result.architecture.timm_name:
        name = "timm"  # the same places
    return Stored(
        source,
        own(result.tensors, result.wanted, source=file.source),
        located,
        preprocessing,
        _heads(known_layout, file),
        {"network": network, "layout": name} | ({"dropped": dropped} if dropped else {}),
        preprocessing_from=origin,
    )


def _without(dictionaries: Dictionaries, drop: Collection[str], *, source: Path) -> tuple[Dictionaries, list[str]]:
    """The dictionaries without tensors of these names, or within modules of these names, and their names."""
    dropped: dict[str, None] = {}
    for stray in drop:
        matching = [name for tensors in dictionaries.values() for name in tensors if f".{stray}." in f".{name}."]
        if not matching:
            names = sorted({name for tensors in dictionaries.values() for name in tensors})
            raise UserError(f"{source} has no tensor to drop called '{stray}'{nearest_name(stray, names)}")
        dropped |= dict.fromkeys(matching)
    kept = {path: {n: v for n, v in tensors.items() if n not in dropped} for path, tensors in dictionaries.items()}
    return {path: tensors for path, tensors in kept.items() if tensors}, list(dropped)


def _with_positions(architecture: Architecture, layout: Layout) -> Architecture:
    """A ViT that interpolates its position embeddings as the layout's authors do; other networks as they are."""
    if layout.positions == "antialiased" or not is_usual_vit(architecture) or POSITIONS in architecture.options:
        return architecture
    return replace(architecture, options=architecture.options | {POSITIONS: layout.positions})


def _preprocessing(
    layout: Layout | None, architecture: Architecture, evaluated: Preprocessing | None
) -> tuple[Preprocessing, str]:
    """The preprocessing of a file's images, and its source: the authors of its layout or names, timm, or none."""
    if layout is not None and layout.preprocessing is not None:
        evaluated, size = layout.preprocessing, published_preprocessing(architecture) if layout.own_size else None
        return (
            evaluated if size is None else resized_preprocessing(evaluated, size.crop),
            f"as the authors of {layout.name} evaluate it",
        )
    if evaluated is not None:
        return evaluated, "as the authors of such files evaluate them"
    if architecture.name.startswith("timm:") and (published := published_preprocessing(architecture)):
        return published, f"as timm's configuration of {architecture.name.removeprefix('timm:')} says"
    nobody = "the usual one, for nothing in the file says which"
    if architecture.name in SMALL_STEM:
        return Preprocessing(resize=32, crop=32), f"{nobody}, for images of 32 pixels"
    if side := architecture.options.get("img_size"):
        return resized_preprocessing(USUAL, side), nobody
    return USUAL, nobody


def _named(name: str) -> Layout | None:
    """The layout of that name or place; None for "order"."""
    if ":" in name:
        return Layout(name, teacher=(name,), student=(name,), others=("",), preprocessing=None)
    layouts = {layout.name: layout for layout in layout_table.LAYOUTS}
    if name not in layouts and name != ORDER:
        names = ", ".join([*layouts, ORDER])
        raise UserError(f"no layout is called '{name}'{nearest_name(name, [*layouts, ORDER])} (there are {names})")
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


def _place(layout: Layout, file: File) -> NetworkPlace | None:
    """Where the layout keeps the asked network: the first of its places that looks like one, or holds any tensors."""
    places = [NetworkPlace.parse(text) for text in (layout.teacher if file.network == "teacher" else layout.student)]
    filled = [place for place in places if place.cut(file.dictionaries)]
    return next(filter(file.looks_like_network, filled), filled[0] if filled else None)


def _map_known(layout: Layout, file: File) -> LocatedNetwork:
    place = _place(layout, file)
    if place is None:
        if file.network == "student" and not layout.student:
            raise UserError(f"files of the layout {layout.name} hold one network only: leave out which")
        places = " or ".join(f"'{text}'" for text in (layout.teacher if file.network == "teacher" else layout.student))
        raise UserError(f"{file.source} is not of the layout {layout.name}: no tensors at {places}")
    cut = {_renamed(name, layout.renames): value for name, value in place.cut(file.dictionaries).items()}
    tensors, known, evaluated = usual_names(cut)
    architecture = file.architecture or file.with_options(known or recognise(tensors))
    if architecture is None:
        raise file.unrecognisable(tensors)
    wanted = file.wanted or blueprint(architecture)
    beside = {name: value for name, value in file.dictionaries[place.path].items() if not name.startswith(place.prefix)}
    rows = cover(tensors, wanted, (*SPARE, *layout.spare)) + cover(beside, {}, layout.others)
    if rows:
        raise coverage_error(rows, tensors, architecture, expected=len(wanted), source=file.source)
    exact = known is not None and file.architecture is None
    return LocatedNetwork(layout.name, place, tensors, architecture, wanted, rows, exact, evaluated)


def _renamed(name: str, renames: Mapping[str, str]) -> str:
    return next((new + name.removeprefix(old) for old, new in renames.items() if name.startswith(old)), name)


def _stated_by_run(contents: Mapping[Any, Any]) -> tuple[Architecture, Preprocessing] | None:
    """Architecture and preprocessing that a run's checkpoint of this package records; None for other files."""
    match contents:
        case {"format": "excb-run", "architecture": dict() as architecture, "preprocessing": dict() as preprocessing}:
            try:
                return architecture_from(architecture), preprocessing_from(preprocessing)
            except (KeyError, TypeError, ValueError):
                return None
    return None


def _heads(layout: Layout | None, file: File) -> dict[str, Tensor]:
    """Projectors, predictor, centroids and sizes of files that have them, as float32."""
    heads = layout.heads_of(file.dictionaries) if layout and layout.heads_of else {}
    wanted = {n: v.to("meta", torch.float32 if v.is_floating_point() else v.dtype) for n, v in heads.items()}
    return own(heads, wanted, source=file.source)
