"""timm's own models with their published weights and preprocessing, by "timm:NAME"."""

from dataclasses import replace
from pathlib import Path

from excb.checkpoint.stored import Stored
from excb.checkpoint.timm_format import preprocessing_of, published_preprocessing
from excb.console import Reporter
from excb.errors import UserError, first_line
from excb.hub.catalogue import Checkpoint, find_at
from excb.networks.architecture import POSITIONS, Architecture
from excb.remote.hf_repository import kept_copy

PREFIX = "timm:"


def read(name: str) -> Stored:
    """One of timm's models, "timm:NAME", without its classifier.

    Raises:
        UserError: there is no such model, it has no published weights, they cannot be fetched, or its images are not
            square RGB.
    """
    import timm

    architecture, model = Architecture(name), name.removeprefix(PREFIX)
    try:
        cfg = timm.models.get_pretrained_cfg(model)
        copy = kept_copy(cfg.hf_hub_id, Reporter()) if cfg is not None and cfg.hf_hub_id else None
        overlay = None if copy is None else {"file": str(copy), "custom_load": False}
        published = timm.create_model(model, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay)
    except (OSError, RuntimeError, ValueError, LookupError) as error:
        if not timm.is_model(model):
            architecture.build()  # refuses, and says which name is meant
        raise UserError(
            f"no published weights for {name} ({first_line(error)}): check the name and the connection, or fetch the "
            "model once where there is one and copy timm's cache"
        ) from None
    preprocessing = preprocessing_of(name, timm.data.resolve_model_data_config(published))
    facts = {"network": "pretrained"}
    return as_evaluated(
        Stored(Path(name), dict(published.state_dict()), architecture, preprocessing, facts=facts), name
    )


def as_evaluated(stored: Stored, name: str) -> Stored:
    """Weights of timm's with the preprocessing of their row in the catalogue, where they have one: their authors' own.

    So a set of weights has one default, whether it is loaded by the row's name, timm's, a repository's or a path. Where
    the row's size is not the one of the position embeddings, these are interpolated as the row says.

    Args:
        stored: of a repository or a folder of timm's, or built by one of timm's names with a tag.
        name: that led to it.
    """
    row = _row_of(stored, name)
    if row is None or row.preprocessing == stored.preprocessing:
        return stored
    positions = {key: value for key, value in row.architecture.options.items() if key == POSITIONS}
    architecture = replace(stored.architecture, options=stored.architecture.options | positions)
    origin = f"as the catalogue says of {row.name}"
    return replace(stored, preprocessing=row.preprocessing, architecture=architecture, preprocessing_from=origin)


def _row_of(stored: Stored, name: str) -> Checkpoint | None:
    """The row of weights: by their repository, or as those that timm published by the name and tag that they state."""
    from timm.models import get_pretrained_cfg

    places = {name.partition("@")[0]} if name.startswith("hf-hub:") else set[str]()
    model, published = stored.architecture.timm_name or "", stored.facts.get("timm") or {}
    if "." not in model:
        model = f"{model}.{published.get('tag')}"
    try:
        cfg = get_pretrained_cfg(model)
    except RuntimeError:  # timm has published no weights by that name
        cfg = None
    # Whoever trains such a network further may keep its tag, but then has other classes or other images.
    same = not published or (
        published.get("num_classes", 0) == (cfg.num_classes if cfg else None)
        and stored.preprocessing == published_preprocessing(Architecture(f"{PREFIX}{model}"))
    )
    if cfg is not None and cfg.hf_hub_id and same:
        places.add(f"hf-hub:{cfg.hf_hub_id}")
    return find_at(places)
