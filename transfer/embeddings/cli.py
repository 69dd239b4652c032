"""`excb-eval embed` and `excb-eval search`: their options, and what they do in each process."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Command, Parser, local_path
from excb.console import Reporter
from excb.errors import UserError, is_rank0

from ..options import add_pass_options
from ..parallel import in_parallel

if TYPE_CHECKING:
    import torch

    from ..task import Task
    from .embeddings import Embeddings
    from .page import SearchFindings

SHOWN = 20  # groups of near-duplicates that the terminal lists


def _add_images(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--ckpt",
        required=True,
        metavar="PATH",
        help="run folder, checkpoint file, exported folder, a name of `excb-zoo list` or timm:NAME",
    )
    add("--data", metavar="SOURCE", help="images in folders of any depth, with labels or not; shards; hf:ID ...")
    add("--list", type=Path, metavar="FILE", help="a file with one image path per line, below --data")
    add("--data-root", type=Path, metavar="DIR", help="folder with torchvision's data sets")
    add("--index", type=local_path, metavar="FILE", help="write a FAISS index of unit vectors here too, and FILE.json")
    add_pass_options(parser)


def _add_embed(parser: Parser) -> None:
    _add_images(parser)
    parser.add_argument("--out", type=local_path, metavar="FILE", help="FILE.npz, FILE.parquet or FILE.safetensors")


def _embed(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    from .files import check_file

    reporter = _reporter(args)
    if args.out is None and not args.dry_run:
        raise UserError.on_all_ranks("name the file to write with --out FILE.npz, FILE.parquet or FILE.safetensors")
    if args.out is not None:
        check_file(args.out)
    embeddings = _embeddings(args, device, reporter, state=args.out)
    if embeddings is None:
        return 0
    files = run_on_rank0(lambda: [embeddings.save(args.out), *_index(args, embeddings)])
    _forget(args, args.out)
    reporter.note(f"wrote {', '.join(map(str, files))}")
    if is_rank0():
        if args.json:
            reporter.answer(json.dumps({"files": list(map(str, files))} | embeddings.describe(), indent=2))
        else:
            reporter.answer(f"{len(embeddings):,} vectors of {embeddings.rows.width} numbers in {args.out}")
    return 0


def _add_search(parser: Parser) -> None:
    _add_images(parser)
    add = parser.add_argument
    add("--query", nargs="+", default=[], metavar="IMAGE", help="images whose nearest neighbours to find")
    add("--k", type=int, default=12, metavar="K", help="nearest images of each query (default: 12)")
    add(
        "--near-duplicates",
        type=float,
        metavar="COSINE",
        help="list groups of images with at least this cosine, such as 0.95",
    )
    add("--out", type=local_path, metavar="PAGE.html", help="write one self-contained page with pictures")


def _search(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    reporter = _reporter(args)
    if not args.query and args.near_duplicates is None and args.index is None and not args.dry_run:
        raise UserError.on_all_ranks("name what to search for: --query IMAGE, or --near-duplicates 0.95")
    if args.k < 1:
        raise UserError.on_all_ranks("--k must be at least 1")
    if args.out is not None and args.out.suffix not in (".html", ".htm"):
        raise UserError.on_all_ranks(f"--out {args.out}: the page is written to a file that ends in .html")
    if missing := [name for name in args.query if not Path(name).is_file()]:
        raise UserError.on_all_ranks(f"--query {missing[0]}: no such file")
    embeddings = _embeddings(args, device, reporter, state=args.out)
    if embeddings is None:
        return 0
    run_on_rank0(lambda: _answer(args, embeddings, reporter))
    _forget(args, args.out)
    return 0


def _answer(args: argparse.Namespace, embeddings: "Embeddings", reporter: Reporter) -> None:
    """Search, and print or write what was found; rank 0 does."""
    from excb.files.atomic import write_text

    from .page import SearchFindings, render_search

    queries = dict.fromkeys(args.query)
    found = SearchFindings(
        [(name, embeddings.search(name, args.k)) for name in queries], _groups(args, embeddings, reporter)
    )
    files = _index(args, embeddings)
    if args.out is not None:
        with reporter.progress("pictures of the page", found.pictures) as bar:
            page = render_search(found, embeddings, cosine=args.near_duplicates, progress=bar.advance)
        write_text(page, args.out)
        files = [args.out, *files]
    if files:
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if args.json:
        reporter.answer(json.dumps(_to_dict(found, embeddings), indent=2))
    else:
        _print(found, embeddings, reporter, args.near_duplicates)


def _groups(args: argparse.Namespace, embeddings: "Embeddings", reporter: Reporter) -> list[list[str]] | None:
    if args.near_duplicates is None:
        return None
    from .duplicates import groups

    with reporter.progress("pairs of images", len(embeddings)) as bar:
        found = groups(embeddings.rows, args.near_duplicates, bar.advance)
    return [[embeddings.paths[index] for index in group] for group in found]


def _to_dict(found: "SearchFindings", embeddings: "Embeddings") -> dict[str, Any]:
    queries = [
        {"query": name, "matches": [{"path": match.path, "cosine": match.cosine} for match in matches]}
        for name, matches in found.queries
    ]
    duplicates = {} if found.groups is None else {"near_duplicates": found.groups}
    return {"queries": queries} | duplicates | embeddings.describe()


def _print(found: "SearchFindings", embeddings: "Embeddings", reporter: Reporter, cosine: float | None) -> None:
    if found.queries:
        rows = [
            [Path(name).name if rank == 1 else "", str(rank), f"{match.cosine:.4f}", match.path]
            for name, matches in found.queries
            for rank, match in enumerate(matches, 1)
        ]
        title = f"Nearest of {len(embeddings):,} images in {embeddings.root}"
        reporter.table(title, ["query", "rank", "cosine", "image"], rows)
    if found.groups is None:
        return
    images = sum(map(len, found.groups))
    title = f"{len(found.groups):,} groups of near-duplicates (cosine from {cosine:g}), {images:,} images in them"
    rows = [
        [str(number), str(len(group)), path] if place == 0 else ["", "", path]
        for number, group in enumerate(found.groups[:SHOWN], 1)
        for place, path in enumerate(group)
    ]
    reporter.table(title, ["group", "images", "image"], rows)
    if len(found.groups) > SHOWN:
        reporter.answer(f"{len(found.groups) - SHOWN:,} smaller groups are not listed: --json has all")


def _embeddings(
    args: argparse.Namespace, device: "torch.device", reporter: Reporter, *, state: Path | None
) -> "Embeddings | None":
    """The embeddings of all images; None after `--dry-run`."""
    from excb.distributed.collectives import all_succeed
    from excb.remote.home import cache_root

    from ..features.export import describe, plan
    from . import computing, index

    if args.index is not None:
        all_succeed(index.check)
    task: Task = computing.opened(args, device, reporter)
    cache = args.cache or cache_root()
    if args.no_cache:  # rows still go to the disk, beside the result until that is written
        cache = _state(state) if state is not None else None
    if args.dry_run:
        planned = plan({"images": computing.extraction_of(task)}, cache)
        if is_rank0():
            reporter.answer(describe(planned))
        return None
    task = replace(task, cache=cache)
    return computing.compute(task, cache, reporter, loads=args.ckpt)


def _state(out: Path) -> Path:
    return out.with_name(f".{out.name}.unfinished")


def _forget(args: argparse.Namespace, out: Path | None) -> None:
    """Remove the rows beside a result that is written, where no cache keeps them."""
    if args.no_cache and out is not None and is_rank0():
        import shutil

        shutil.rmtree(_state(out), ignore_errors=True)


def _index(args: argparse.Namespace, embeddings: "Embeddings") -> list[Path]:
    return [] if args.index is None else embeddings.save_index(args.index)


def _reporter(args: argparse.Namespace) -> Reporter:
    return Reporter(quiet=args.quiet or not is_rank0())


EMBED = Command(
    "embed",
    "a vector for every image of a folder, labelled or not: FILE.npz, .parquet or .safetensors",
    _add_embed,
    in_parallel(_embed),
    group="features",
    examples=(
        "embed --ckpt rn50_400ep --data photos --out photos.npz",
        "embed --ckpt runs/a --data photos --out photos.parquet --gpus 2",
    ),
)
SEARCH = Command(
    "search",
    "the images nearest to others, and near-duplicates, as a table and one page",
    _add_search,
    in_parallel(_search),
    group="features",
    examples=(
        "search --ckpt rn50_400ep --data photos --query a.jpg --out page.html",
        "search --ckpt rn50_400ep --data photos --near-duplicates 0.95",
    ),
)
