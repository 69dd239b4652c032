"""`excb-eval features` and `excb-eval cache`: compute, export, list and delete features."""

import argparse
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError, is_rank0
from excb.options import option

from .opening import labelled
from .options import LabelledOptions
from .protocol import Work
from .runner import forecast, refuse_results_among
from .shell import Shell, shell_command

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(LabelledOptions):
    """Features of labelled images."""

    kind: Literal["pooled", "last4_cls"] = option("pooled", "last4_cls: DINO's input of linear heads")


def _features(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    from .features.export import check_features_file, export_features, refuse_other_features

    options: FeatureOptions = given[0]
    if shell.out is not None:
        check_features_file(shell.out)
    task = labelled()(options, None, device, shell.reporter)
    extractions = {name: task.extraction(images, options.kind) for name, images in task.sets.items()}
    if (out := shell.out) is not None:
        refuse_results_among(task.sets.values(), out.parent)
        if not shell.overwrite:
            run_on_rank0(partial(refuse_other_features, extractions, out))
    if shell.dry_run:
        forecast(task, Work(task.sets, options.kind), shell.reporter, as_json=shell.json)
        return 0
    if out is None:
        raise UserError.on_all_ranks("name the file with --out FILE.npz")
    file = export_features(extractions, task.cache, out, shell.reporter)
    if shell.json and is_rank0():
        answer = {"file": str(file), "kind": options.kind, "train": len(task.train), "test": len(task.test)}
        shell.reporter.answer(json.dumps(answer, indent=2))
    return 0


def _add_cache(parser: Parser) -> None:
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: $EXCB_CACHE, else ~/.cache/excb")
    parser.add_argument("--clear", action="store_true", help="delete all features and digests in it")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _cache(args: argparse.Namespace) -> int:
    from excb.features.listing import entries, remove, unfinished_files
    from excb.images.digests import delete_digests
    from excb.remote.home import cache_root

    root, reporter = args.cache or cache_root(), Reporter()
    if args.cache is not None and not root.is_dir():
        raise UserError(f"no folder {root}: --cache names the one that keeps features")
    if args.clear:
        freed = remove(root) + (delete_digests() if args.cache is None else 0)
        answer = {"cache": str(root), "deleted_bytes": freed}
        reporter.answer(json.dumps(answer, indent=2) if args.json else f"{freed / 2**20:,.1f} MiB deleted from {root}")
        return 0
    if args.json:
        reporter.answer(json.dumps(_listed(root), indent=2))
        return 0
    rows = [
        [entry.architecture or "unfinished", entry.kind or "", f"{entry.images or 0:,}", f"{entry.bytes / 2**20:,.1f}"]
        for entry in entries(root)
    ]
    reporter.table(f"Features in {root}", ["network", "kind", "images", "MiB"], rows)
    if left := unfinished_files(root):
        rows = [
            [str(each.path.relative_to(root)), f"{each.bytes / 2**20:,.1f}", f"{each.last_change:%Y-%m-%d %H:%M}"]
            for each in left
        ]
        reporter.table(f"Unfinished files in {root}", ["file", "MiB", "last change"], rows)
        reporter.note(
            "a running command writes an unfinished file, or a killed one left it: delete those that no longer change "
            "(the next command on the same machine does, in their folder)"
        )
    return 0


def _listed(root: Path) -> dict[str, Any]:
    """The contents of the cache, ready for JSON."""
    from excb.features.listing import entries, unfinished_files

    return {
        "cache": str(root),
        "features": [asdict(entry) | {"folder": str(entry.folder)} for entry in entries(root)],
        "unfinished": [
            {"file": str(each.path), "bytes": each.bytes, "last_change": each.last_change.isoformat()}
            for each in unfinished_files(root)
        ],
    }


FEATURES = shell_command(
    "features",
    "compute, keep and export features",
    (FeatureOptions,),
    _features,
    metavar="FILE.npz",
    overwrite=True,
    group="features",
    examples=(
        "features --ckpt runs/a --data photos --out features.npz",
        "features --ckpt tiny_grocery --data photos --dry-run",
    ),
)
CACHE = Command(
    "cache",
    "what the feature cache holds; --clear empties it",
    _add_cache,
    _cache,
    group="features",
    examples=(
        "cache",
        "cache --clear",
    ),
)
