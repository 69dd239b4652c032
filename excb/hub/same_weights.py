"""One default preprocessing for a set of weights, whichever name or file leads to it: that of its catalogue row."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from excb.checkpoint.stored import Stored
from excb.checkpoint.timm_format import published_preprocessing
from excb.errors import UserError
from excb.hub.catalogue import Checkpoint, find_at, find_with_hash
from excb.hub.from_transformers.published import published_at
from excb.hub.resolve import HUB, TIMM
from excb.networks.architecture import POSITIONS, Architecture
from excb.networks.preprocessing import Preprocessing
from excb.remote.hashes import hashes_of

Say = Callable[[str], None]


def as_evaluated(stored: Stored, row: Checkpoint | None, note: Say) -> Stored:
    """Weights with the preprocessing of their row in the catalogue: their authors' own. Without a row, as they are.

    Where the row's size is not the one of the position embeddings, these are interpolated as the row says.

    Args:
        stored: weights with the preprocessing that their own files or their library state.
        row: of the same weights.
        note: called with a line where the two differ.
    """
    if row is None or row.preprocessing == stored.preprocessing:
        return stored
    names = [field.name for field in fields(Preprocessing)]
    differ = [name for name in names if getattr(row.preprocessing, name) != getattr(stored.preprocessing, name)]
    note(
        f"{stored.file}: these are the weights of {row.name}, so images are prepared as the catalogue says of it: "
        f"{row.preprocessing.in_short} ({', '.join(differ)} stated differently there)"
    )
    positions = {key: value for key, value in row.architecture.options.items() if key == POSITIONS}
    timms = stored.architecture.timm_name is not None
    options = stored.architecture.options | (positions if timms else {})
    return replace(
        stored,
        preprocessing=row.preprocessing,
        architecture=replace(stored.architecture, options=options),
        preprocessing_from=f"as the catalogue says of {row.name}",
    )


def row_of_timm(cfg: Any) -> Checkpoint | None:
    """The row of the weights that one of timm's configurations names: of its repository, or of the file they come from.

    Args:
        cfg: a `timm.models.PretrainedCfg`, or None.
    """
    places = set[str]() if cfg is None else {f"{HUB}{cfg.hf_hub_id}" if cfg.hf_hub_id else "", cfg.url or ""} - {""}
    return find_at(places)


def row_of_timms_folder(stored: Stored, name: str) -> Checkpoint | None:
    """The row of a folder or a file of timm's: of its repository, or of what timm published by its name and tag.

    Args:
        stored: as its own files state it.
        name: that led to it, such as "hf-hub:timm/NAME@REVISION" or a path.
    """
    from timm.models import get_pretrained_cfg

    if (row := row_of_repository(name)) is not None:
        return row
    model, published = stored.architecture.timm_name or "", stored.facts.get("timm") or {}
    if "." not in model:
        model = f"{model}.{published.get('tag')}"
    try:
        cfg = get_pretrained_cfg(model)
    except RuntimeError:  # timm has published no weights by that name
        return None
    # Whoever trains such a network further may keep its tag, but then has other classes or other images.
    same = not published or (
        published.get("num_classes", 0) == (cfg.num_classes if cfg else None)
        and stored.preprocessing == published_preprocessing(Architecture(f"{TIMM}{model}"))
    )
    return row_of_timm(cfg) if same else None


def row_of_transformers_folder(folder: Path, stored: Stored, name: str) -> Checkpoint | None:
    """The row of a folder of transformers: of its repository, or of the one that it copies."""
    if (row := row_of_repository(name)) is not None:
        return row
    copied = published_at(folder, stored)
    return None if copied is None else find_at({f"{HUB}{copied}"})


def row_of_repository(name: str) -> Checkpoint | None:
    """The row of a name "hf-hub:USER/REPOSITORY", with or without a revision; None of all others."""
    return find_at({name.partition("@")[0]}) if name.startswith(HUB) else None


def row_of_file(file: Path) -> Checkpoint | None:
    """The row whose file at the origin a file is a copy of, by its sha256; None of all others."""
    try:
        return find_with_hash(hashes_of(file, {"sha256"})["sha256"])
    except UserError:  # a folder of parts
        return None
