"""Comparable figures: the fields that define a measured or published one, and the images that it is of."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from excb.hub.catalogue import find
from excb.results.result import ResultRecord, folder_name

from .. import protocols
from ..protocol import Fields, FigureKind
from ..published.claim import Claim, ClaimImages
from ..published.registry import claims
from ..reporting.fields import OTHER, UNSTATED, named


@dataclass(frozen=True)
class ImagesKey:
    """The images of a figure."""

    key: str  # equal for figures of one test set
    title: str  # as people call it
    train: str  # which train images; equal where figures may be compared


def fields_of_result(result: ResultRecord, kind: FigureKind) -> Fields:
    """Every field that defines a measured figure, in the order in which people ask for them; values as in JSON."""
    settings = json.loads(json.dumps(result.settings))
    protocol = protocols.protocol_of_result(result.protocol)
    fields = named(settings) if protocol is None else protocol.fields_of(settings, kind)
    images = result.checkpoint.get("preprocessing") or {}
    sides = _sides(images.get("resize"), images.get("crop"))
    return fields | sides | {"train images": images_of_result(result).train}


def _sides(resize: int | None, crop: int | None) -> Fields:
    return {name: value for name, value in (("resize", resize), ("crop", crop)) if value is not None}


def images_of_result(result: ResultRecord) -> ImagesKey:
    """The images that were used: those of the registry where they are, else any by their fingerprints."""
    train, test = _part(result.data, "train"), test_part(result)
    protocol = protocols.protocol_of_result(result.protocol)
    for images in _registered("classes" if protocol is None else protocol.labels):
        if images.test_fingerprint is None:
            same = (images.test, images.classes) == (test.get("images"), result.data.get("classes"))
        else:
            same = images.test_fingerprint == test.get("fingerprint")
        if same:
            right = images.train in (None, train.get("images"))
            right = right and images.train_fingerprint in (None, train.get("fingerprint"))
            return ImagesKey(images.name, images.title, "all" if right else _short(train))
    root = folder_name(str(test.get("root", "")))
    title = root.rpartition("/")[0] or root or "unnamed images"
    return ImagesKey(f"{_short(test)}", f"{title} ({_short(test)[:8]})", _short(train))


def test_part(result: ResultRecord) -> dict[str, Any]:
    """The part of a result about its test images; empty where there is none."""
    return _part(result.data, "test")


def _part(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = data.get(name)
    return part if isinstance(part, dict) else {}


def _short(images: Mapping[str, Any]) -> str:
    return str(images.get("fingerprint"))[:12]


@cache
def _registered(labels: str) -> list[ClaimImages]:
    """The registry's image sets that have these labels: classes, boxes, masks or queries."""
    sets = {claim.data.name: claim.data for claim in claims() if _labels_of(claim) == labels}
    return [images for images in sets.values() if images.test is not None]


def _labels_of(claim: Claim) -> str:
    protocol = protocols.of_command(claim.protocol.command)
    return "classes" if protocol is None else protocol.labels


def of_claim(claim: Claim, kind: FigureKind) -> Fields:
    """Every field that defines a published figure, named as those of a measured one.

    Settings that nobody states are assumed in the registry. A field says so, which keeps such figures apart. Figures
    that no command measures as their source did are comparable only with those of the same table.
    """
    stated = claim.protocol
    if claim.differences:
        return {OTHER: f"measured as only the source does it (see the claims {claim.table})", "protocol": claim.table}
    if not stated.command:
        return {OTHER: stated.cannot, "protocol": stated.name}
    protocol, row = protocols.of_command(stated.command), find(claim.checkpoint)
    fields = dict(stated.options) if protocol is None else protocol.claim_fields(dict(stated.options), kind)
    if stated.unstated:
        fields[UNSTATED] = ", ".join(stated.unstated)
    if row is not None and _labels_of(claim) == "classes":
        fields |= _sides(row.preprocessing.resize, row.preprocessing.crop)
    plain: Fields = json.loads(json.dumps(fields))
    return plain | {"train images": "all"}
