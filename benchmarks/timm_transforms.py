"""Inputs of timm's pretrained configurations: ours against timm's own evaluation transform, on real photographs.

Run: python -m benchmarks.timm_transforms

Every configuration of `timm.models.list_pretrained` is judged by its name, without weights. It is equal where the
tensor of every photograph has the same bits as `create_transform(**resolve_data_config(...), is_training=False)` gives,
refused where `excb.load` would refuse the name, and otherwise wrong. Configurations that differ only in their names are
compared once. The exit code is 1 if any is wrong.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.models import get_pretrained_cfg, list_pretrained

from excb.checkpoint.timm_format import preprocessing_of
from excb.errors import UserError
from excb.images.photographs import photograph

PHOTOGRAPHS = ("astronaut", "cat", "coffee")  # square, and of odd and even sides, wider than high
Verdict = Literal["equal", "refused", "wrong"]


def configuration(name: str) -> dict[str, Any]:
    """The fields of a pretrained configuration that timm's transform is made from."""
    cfg = get_pretrained_cfg(name)
    assert cfg is not None, name
    data: dict[str, Any] = resolve_data_config(pretrained_cfg=cfg.to_dict())
    return data


def one_of_each_kind(names: Iterable[str]) -> list[str]:
    """The name with the smallest images of every way to cut and to resize."""
    least: dict[tuple[Any, ...], tuple[int, str]] = {}
    for name in names:
        data = configuration(name)
        _, height, width = data["input_size"]
        kind = (data["crop_mode"], data["interpolation"], height == width, data["crop_pct"] > 1)
        least[kind] = min((height * width, name), least.get(kind, (sys.maxsize, "")))
    return [name for _, name in least.values()]


def verdicts(names: Iterable[str], photographs: Sequence[Image.Image]) -> dict[str, tuple[Verdict, str]]:
    """Of every name its verdict, and why it is refused or how far it is from timm's."""
    known: dict[str, tuple[Verdict, str]] = {}
    judged = {}
    for name in names:
        data = configuration(name)
        if (key := repr(data)) not in known:
            known[key] = _judge(name, data, photographs)
        judged[name] = known[key]
    return judged


def _judge(name: str, data: dict[str, Any], photographs: Sequence[Image.Image]) -> tuple[Verdict, str]:
    try:
        ours = preprocessing_of(f"timm:{name}", data)
    except UserError as error:
        return "refused", str(error).partition(" ")[2]  # without the name, for others have the same configuration
    theirs: Any = create_transform(**data, is_training=False)
    pairs = [(ours(image), theirs(image)) for image in photographs]
    if all(torch.equal(*pair) for pair in pairs):
        return "equal", ""
    return "wrong", f"{max(float((one - other).abs().max()) for one, other in pairs):.1e} apart"


def main() -> int:
    """Judge all configurations; print the counts, and whatever is not equal."""
    judged = verdicts(list_pretrained(), [photograph(name) for name in PHOTOGRAPHS])
    for name, (verdict, why) in judged.items():
        if verdict != "equal":
            print(f"{name}: {verdict}: {why}")
    counts = Counter(verdict for verdict, _ in judged.values())
    kinds = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("equal", "refused", "wrong"))
    print(f"timm {timm.__version__}: {len(judged)} pretrained configurations: {kinds}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
