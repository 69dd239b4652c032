"""The lineage of a network: whether it learned from labels, by which method, on which images, its licence."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from excb.checkpoint.teachers import DISTILLATION, TEACHERS, Labels, labels_of_teachers, strongest, teachers_in
from excb.errors import UserError, require
from excb.hub.adopted import GIVEN
from excb.hub.backbone import Backbone, Entry
from excb.hub.catalogue import Checkpoint, find_at, find_built_in, method_of
from excb.hub.resolve import HUB, TIMM, UNTRAINED, WEB, resolve
from excb.networks.backbone import weights_hash
from excb.references.untrained import NETWORK as NEVER_TRAINED

# Methods of the catalogue, by what they learn from besides images. A method that is in none of these is unknown.
SELF_SUPERVISED = {
    *("BYOL", "Barlow Twins", "CAPI", "CoKe", "DINO", "DINOv2", "DINOv3", "DeepCluster-v2", "ExCB", "ExCB + contrast"),
    *("FCMAE", "Franca", "I-JEPA", "MAE", "MAE (Hiera)", "MAST", "MIRA", "MSN", "MaskFeat", "MoCo-v2", "MoCo-v3"),
    *("NNCLR", "SEER", "SMoG", "SimCLR", "SimMIM", "SimSiam", "SwAV", "TWIST", "VICReg", "data2vec", "iBOT"),
}
SUPERVISED = "Supervised"
# Texts are labels as well: people wrote them for the images. EVA-02 and BEiT v2 predict features of CLIP's kind, and
# RADIO's teachers are of that kind, one of them trained with masks that people checked.
WITH_TEXTS = {
    *("AIMv2", "BEiT v2", "CLIP", "EVA-02", "EVA-02-CLIP", "Meta CLIP 2", "PE-Core", "RADIO", "SigLIP", "SigLIP 2"),
}

# timm's tags: what follows the name of a model says how, and last on what, its weights were trained.
_METHODS_OF_TAGS = {
    **dict.fromkeys(("dino", "fb_dino"), "DINO"),
    **dict.fromkeys(("lvd1689m", "dinov3_lvd1689m", "sat493m"), "DINOv3"),
    **dict.fromkeys(("in1k_ijepa", "in22k_ijepa"), "I-JEPA"),
    "lvd142m": "DINOv2",
    "mae": "MAE",
    "fcmae": "FCMAE",
    "seer": "SEER",
}
_CLASSES = re.compile(r"(.*_)?in(1k|12k|21k|22k)(_\d+)?")  # the labelled set of a classifier, and its image size
_ONE_SET = re.compile(r"((a[123]h?|augreg|fb|ra2?|tf|tv2?)_)?in(1k|12k|21k|22k)")  # on nothing but that set
_DATA_OF_TAGS = {"lvd142m": "LVD-142M", "lvd1689m": "LVD-1689M", "dinov3_lvd1689m": "LVD-1689M", "sat493m": "SAT-493M"}


def lineage(backbone: Backbone, name: str) -> dict[str, Any]:
    """The record of a teacher for its student's checkpoint, as `excb.checkpoint.teachers` defines it.

    Nothing is guessed: what neither the weights' files nor the catalogue nor timm says is None, or "unknown".

    Args:
        backbone: the teacher, as `excb.load` or `excb.hub.adopted.adopt` gives it; its weights are hashed.
        name: what `excb.load` was given.

    Raises:
        UserError: the name or something else that is known of it cannot be recorded, such as a name of two lines.
    """
    entry, network = backbone.entry, backbone.network
    given = entry.network == GIVEN  # what it is called is then no name of the catalogue
    row = None if given else entry.checkpoint or _row(name)
    published = {} if given else entry.published or _published(name)
    method = _method(entry, row, published)
    values = {
        "name": name,
        "method": method,
        "labels": labels_behind(method, entry.recipe, entry.teachers),
        "licence": (row.licence if row else None) or _text(published, "license"),
        "pretrained_on": _images(entry, row, published),
        "source": None if given else _source(row, name, published),
        "sha256": weights_hash(network),
        "architecture": {"name": entry.architecture.name, "options": dict(entry.architecture.options)},
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "input": [backbone.transform.resize, backbone.transform.crop],
    }
    require(
        TEACHERS.rule([values]) is None,
        f"what is known of the teacher {name[:80]!r} cannot be recorded in a checkpoint: its name must be one line, "
        "and its options short and plain",
    )
    return values


def labels_behind(
    method: str | None, recipe: Mapping[str, Any] | None = None, teachers: Sequence[Mapping[str, Any]] = ()
) -> Labels:
    """Whether labels reached a network: by its method, by the network that it started from, or by its teachers.

    Args:
        method: as in the catalogue; None is unknown.
        recipe: of a run of ours, in plain values; empty otherwise.
        teachers: the record of a student's teachers.
    """
    sources: list[Labels] = [labels_of_method(method), labels_of_teachers(teachers, recipe)]
    if is_distilled(method, recipe) and not teachers:
        sources.append("unknown")
    if start := (recipe or {}).get("init"):
        sources.append(_labels_of_name(str(start)))
    return strongest(*sources)


def labels_of_method(method: str | None) -> Labels:
    """Whether a method itself learns from labels; a student's may reach it through its teachers."""
    if method == NEVER_TRAINED or method in SELF_SUPERVISED or is_distilled(method):
        return "none"
    return "used" if method == SUPERVISED or method in WITH_TEXTS else "unknown"


def is_distilled(
    method: str | None, recipe: Mapping[str, Any] | None = None, teachers: Sequence[Mapping[str, Any]] = ()
) -> bool:
    """Whether a network is a student: by its method's name, its recipe or the record of its teachers."""
    return (method or "").startswith(DISTILLATION) or bool(teachers_in(recipe)) or bool(teachers)


def _labels_of_name(name: str) -> Labels:
    """As far as the catalogue and timm know the name; the files of other networks are not read."""
    if name.startswith(UNTRAINED):
        return "none"
    row = _row(name)
    return labels_behind(row.method if row else _method_of_tag(_published(name)))


def _row(name: str) -> Checkpoint | None:
    """The catalogue's row of a name, an alias, or of a repository that holds the weights of a row."""
    try:
        resolved = resolve(name)
    except UserError:  # nothing there, or nothing to load
        return None
    published = _published(name).get("hf_hub_id")
    places = {name, name.partition("@")[0], f"{HUB}{published}"} if name.startswith((HUB, TIMM)) else set[str]()
    return resolved.row or find_at(places)


def _published(name: str) -> dict[str, Any]:
    """Facts that timm states about the weights of "timm:NAME"; empty for other names."""
    if not name.startswith(TIMM):
        return {}
    from timm.models import get_pretrained_cfg

    try:
        cfg = get_pretrained_cfg(name.removeprefix(TIMM))
    except RuntimeError:  # no such weights
        return {}
    return {} if cfg is None else {"hf_hub_id": cfg.hf_hub_id, **cfg.to_dict()}


def _method(entry: Entry, row: Checkpoint | None, published: Mapping[str, Any]) -> str | None:
    if entry.network == NEVER_TRAINED:
        return NEVER_TRAINED
    if teachers_in(entry.recipe):
        return method_of(entry.recipe)  # whatever the row calls it
    if row is not None and row.method != "unknown":
        return row.method
    return method_of(entry.recipe) if entry.recipe else _method_of_tag(published)


def _method_of_tag(published: Mapping[str, Any]) -> str | None:
    """The method of weights of timm's: known by its tag, or a classifier that was trained on labelled images."""
    tag, classes = _text(published, "tag"), published.get("num_classes")
    if isinstance(classes, int) and classes >= 1000 and _CLASSES.fullmatch(tag or ""):
        return SUPERVISED
    return _METHODS_OF_TAGS.get(tag or "")


def _images(entry: Entry, row: Checkpoint | None, published: Mapping[str, Any]) -> str | None:
    """The name of the images that the network learned from."""
    if data := entry.training.get("data"):
        return str(data)
    original = find_built_in(row.name) if row else None  # an import of an older version does not say
    for each in (row, original):
        if each is not None and each.pretrained_on:
            return each.pretrained_on
    tag = _text(published, "tag") or ""
    match = _ONE_SET.fullmatch(tag) if _method_of_tag(published) == SUPERVISED else None
    return f"ImageNet-{match[3]}" if match else _DATA_OF_TAGS.get(tag)


def _source(row: Checkpoint | None, name: str, published: Mapping[str, Any]) -> str | None:
    """Where the weights were published: an address without its query, which may hold a key; None of local files."""
    repository = published.get("hf_hub_id")
    stated = [row.source, *row.locations] if row else []
    for place in [*stated, name, f"{HUB}{repository}" if repository else "", _text(published, "origin_url") or ""]:
        if place.startswith(HUB):
            return f"https://huggingface.co/{place.removeprefix(HUB).partition('@')[0]}"
        if place.startswith(WEB):
            return place.partition("?")[0]
    return None


def _text(published: Mapping[str, Any], field: str) -> str | None:
    """A text that timm's configuration states; it may come from any repository."""
    value = published.get(field)
    return value if isinstance(value, str) and value.strip() else None
