"""What defines the protocol of a figure: the settings that must agree before two figures may be ranked together."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from excb.hub.catalogue import find
from excb.results.result import Result, folder_name

from ..detection.core.settings import settings_for
from ..linear.recipes import choose
from ..published.claim import Claim, Data
from ..published.claims import claims

# Of settings: what a protocol found or drew by itself, who it is by, and a detector's fields that the checkpoint sets.
_OUTCOMES = frozenset({"chosen", "sweep", "select_images", "seed", "seeds", "source", "assumed"})
_OF_CHECKPOINT = frozenset({"mean", "std", "input_format", "stride_in_1x1", "save_every"})
OTHER, UNSTATED = "other protocol", "not stated"  # fields of published figures that no command here could give
_NAMES = {"temperature": "T", "weight_decay": "weight decay", "lr_batch": "lr per images"}
_FIRST = ("k", "T", "recipe", "engine", "epochs", "batch", "lr", "weight decay", "backbone_lr", "head_lr", "schedule",
          "share", "select")  # fmt: skip
_KNN = re.compile(r"knn_top([15])(?:_k(\d+))?(?:_T([\d.e+-]+))?")
_TOP = re.compile(r"(\w+)_top([15])")
_BOX = re.compile(r"(bbox|segm|voc)_(AP\w*)")
_FAMILIES = {
    "knn": "k-NN on frozen features",
    "linear": "Linear classification",
    "semisup_1pct": "Fine-tuning on 1 % of the labels",
    "semisup_10pct": "Fine-tuning on 10 % of the labels",
    "semisup_1pct_frozen": "Logistic regression on 1 % of the labels",
    "semisup_10pct_frozen": "Logistic regression on 10 % of the labels",
    "finetune": "Fine-tuning on a share of the labels",
    "detection": "Detection and segmentation",
    "voc": "Pascal VOC detection",
}


@dataclass(frozen=True)
class Kind:
    """What a figure is of.

    Args:
        family: figures of one table: "knn", "linear", "semisup_1pct", "detection", ...
        metric: its column: "top-1", "top-5", "box AP50", ...
        settings: of the protocol that the figure's name holds, such as {"k": 20}.
    """

    family: str
    metric: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def title(self) -> str:
        """The family as people call it."""
        return _FAMILIES.get(self.family, self.family.replace("_", " "))


def kind_of(figure: str) -> Kind | None:
    """What a figure's name says; None of names that are no accuracy: single seeds, spreads, numbers of clusters."""
    if found := _KNN.fullmatch(figure):
        settings: list[tuple[str, Any]] = [("k", int(found[2]))] if found[2] else []
        settings += [("T", float(found[3]))] if found[3] else []
        return Kind("knn", f"top-{found[1]}", tuple(settings))
    if found := _TOP.fullmatch(figure):
        return Kind(found[1], f"top-{found[2]}")
    if found := _BOX.fullmatch(figure):
        word = {"bbox": "box ", "segm": "mask ", "voc": ""}[found[1]]
        return Kind("voc" if found[1] == "voc" else "detection", word + found[2])
    return None


@dataclass(frozen=True)
class Place:
    """The images of a figure.

    Args:
        key: equal for figures of one test set.
        title: as people call it.
        train: which train images; equal where figures may be compared.
    """

    key: str
    title: str
    train: str


# ---------------------------------------------------------------------------------------------------------------------
# Measured figures
# ---------------------------------------------------------------------------------------------------------------------


def of_result(result: Result, kind: Kind) -> dict[str, Any]:
    """Every field that defines a measured figure, in the order in which people ask for them; values as in JSON."""
    settings = json.loads(json.dumps(result.settings))
    if result.protocol == "detection":
        detector = {name: value for name, value in settings.pop("settings", {}).items() if name not in _OF_CHECKPOINT}
        settings |= {name: value for name, value in detector.items() if name != "seed"}
    if result.protocol == "knn":
        settings = _votes(settings, kind)
    if isinstance(share := settings.pop("share", None), dict):
        settings |= {"share": f"{share.get('images')} images", "split": str(share.get("sha256"))[:12]}
    fields = {_NAMES.get(name, name): value for name, value in settings.items() if name not in _OUTCOMES}
    images = result.checkpoint.get("preprocessing") or {}
    return _sides(fields, images.get("resize"), images.get("crop")) | {"train images": place_of_result(result).train}


def _votes(settings: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """k and T of one figure of a grid: its name has what the settings have several of."""
    return {"k": _only(settings.get("k")), "T": _only(settings.get("temperature"))} | dict(kind.settings)


def _only(values: Any) -> Any:
    return values[0] if isinstance(values, list) and len(values) == 1 else values


def _sides(fields: dict[str, Any], resize: int | None, crop: int | None) -> dict[str, Any]:
    return fields | {name: value for name, value in (("resize", resize), ("crop", crop)) if value is not None}


def place_of_result(result: Result) -> Place:
    """The images that were used: those of the registry where they are, else any by their fingerprints."""
    train, test = (_part(result.data, name) for name in ("train", "test"))
    for known in _known(detection=result.protocol == "detection"):
        if known.test_fingerprint is None:
            same = (known.test, known.classes) == (test.get("images"), result.data.get("classes"))
        else:
            same = known.test_fingerprint == test.get("fingerprint")
        if same:
            right = known.train in (None, train.get("images"))
            right = right and known.train_fingerprint in (None, train.get("fingerprint"))
            return Place(known.name, known.title, "all" if right else _short(train))
    root = folder_name(str(test.get("root", "")))
    title = root.rpartition("/")[0] or root or "unnamed images"
    return Place(f"{_short(test)}", f"{title} ({_short(test)[:8]})", _short(train))


def _part(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def _short(images: Mapping[str, Any]) -> str:
    return str(images.get("fingerprint"))[:12]


@cache
def _known(*, detection: bool) -> list[Data]:
    """The registry's image sets, of classification or detection."""
    found = {claim.data.name: claim.data for claim in claims() if (claim.protocol.command == "detection") == detection}
    return [data for data in found.values() if data.test is not None]


# ---------------------------------------------------------------------------------------------------------------------
# Published figures
# ---------------------------------------------------------------------------------------------------------------------


def of_claim(claim: Claim, kind: Kind) -> dict[str, Any]:
    """Every field that defines a published figure, named as those of a measured one.

    Settings that nobody states are assumed in the registry: a field says so, which keeps such figures by themselves.
    """
    protocol, options = claim.protocol, claim.protocol.options
    if not protocol.command:
        return {OTHER: protocol.cannot, "protocol": protocol.name}
    row = find(claim.checkpoint)
    sides = (None, None) if row is None else (row.preprocessing.resize, row.preprocessing.crop)
    fields: dict[str, Any] = dict(options)
    if protocol.command == "knn":
        fields = _votes(options, kind)
    elif protocol.command == "linear":
        fields = _linear(options)
    elif protocol.command == "semisup":
        fields = _fine_tuning(options)
    elif protocol.command == "detection":
        fields, sides = _detection(options), (None, None)
    if protocol.unstated:
        fields[UNSTATED] = ", ".join(protocol.unstated)
    told: dict[str, Any] = json.loads(json.dumps(_sides(fields, *sides)))
    return told | {"train images": "all"}


def _linear(options: Mapping[str, Any]) -> dict[str, Any]:
    plan = choose(
        options["protocol"],
        epochs=options.get("epochs"),
        batch=options.get("train-batch"),
        lr=options.get("lr"),
        weight_decay=options.get("wd"),
    )
    fields = {_NAMES.get(name, name): value for name, value in asdict(plan).items() if name not in _OUTCOMES}
    several = len(plan.lr) * len(plan.weight_decay) > 1
    return fields | ({"select": options.get("select", "holdout")} if several else {})


def _fine_tuning(options: Mapping[str, Any]) -> dict[str, Any]:
    from ..finetuning.protocol import SETTINGS

    chosen = SETTINGS[options["percent"]].to_dict()
    for option, name in (("epochs", "epochs"), ("train-batch", "batch"), ("backbone-lr", "backbone_lr")):
        chosen[name] = options.get(option, chosen[name])
    chosen["head_lr"] = options.get("head-lr", chosen["head_lr"])
    fields = {_NAMES.get(name, name): value for name, value in chosen.items() if name not in _OUTCOMES}
    return fields | {"share": f"{options['percent']} %", "split": "SimCLR's list"}


def _detection(options: Mapping[str, Any]) -> dict[str, Any]:
    settings = asdict(settings_for(options["schedule"], options["recipe"]))
    fields = {"engine": "detectron2", "schedule": options["schedule"], "recipe": options["recipe"]}
    return fields | {name: value for name, value in settings.items() if name not in _OF_CHECKPOINT | {"seed"}}


# ---------------------------------------------------------------------------------------------------------------------
# In words
# ---------------------------------------------------------------------------------------------------------------------


def digest(fields: Mapping[str, Any]) -> str:
    """Equal for equal protocols: 12 hexadecimal digits."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What keeps two protocols apart, field by field: "k 20, not 200"."""
    if OTHER in one:
        return [one[OTHER]]
    names = [*one, *(name for name in other if name not in one)]
    unlike = [name for name in names if one.get(name) != other.get(name)]
    return [_difference(name, one.get(name), other.get(name)) for name in unlike]


def _difference(name: str, value: Any, other: Any) -> str:
    if name == UNSTATED:
        return f"{value}: stated nowhere" if value else f"{other}: stated here"
    return f"{name.replace('_', ' ')} {spelt(value)}, not {spelt(other)}"


def spelt(value: Any) -> str:
    """A setting as people read it; of many values their number and their range."""
    if isinstance(value, list | tuple):
        if len(value) > 4 and all(isinstance(each, int | float) for each in value):
            return f"{len(value)} from {min(value):g} to {max(value):g}"
        return " ".join(map(spelt, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def headline(fields: Mapping[str, Any]) -> str:
    """The settings that people ask for first, on one line."""
    found = [f"{name.replace('_', ' ')} {spelt(fields[name])}" for name in _FIRST if fields.get(name) is not None]
    if "resize" in fields and "crop" in fields:
        found.append(f"images {fields['resize']} → {fields['crop']} px")
    return " · ".join(found)
