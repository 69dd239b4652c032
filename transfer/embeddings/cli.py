"""`excb-eval embed` and `excb-eval search`: their options, and what they do in each process."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural
from excb.errors import UserError, is_rank0

from ..shell import Shell, shell_command
from .options import AnyImagesOptions, EmbedOptions, SearchOptions

if TYPE_CHECKING:
    import torch

    from ..task import Task
    from .copies.near_duplicates import NearDuplicates
    from .embeddings import Embeddings
    from .page import SearchFindings
    from .replacing import Source

    Refuse = Callable[[Source], object]

SHOWN = 20  # groups of near-duplicates that the terminal lists


def _embed(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    from .replacing import refuse_other_vectors
    from .table.files import check_vectors_file

    options: EmbedOptions = given[0]
    if (out := shell.out) is None and not shell.dry_run:
        raise UserError.on_all_ranks("name the file to write with --out FILE.npz, .parquet, .safetensors or .csv")
    if out is not None:
        check_vectors_file(out)

    def refuse(source: "Source") -> None:
        if out is not None:
            refuse_other_vectors(out, source)

    embeddings = _indexed(options, shell, device, refuse)
    if embeddings is None or out is None:
        return 0
    files = run_on_rank0(lambda: [*_saved(embeddings, out), *_index(options, embeddings)])
    forget_unfinished(options, shell)
    reporter = shell.reporter
    reporter.note(f"wrote {', '.join(map(str, files))}")
    if is_rank0():
        if shell.json:
            reporter.answer(json.dumps({"files": list(map(str, files))} | embeddings.describe(), indent=2))
        else:
            reporter.answer(
                f"{plural(len(embeddings), 'vector')} of {plural(embeddings.rows.width, 'number')} in {out}"
            )
    return 0


def _search(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from excb.distributed.collectives import all_succeed, run_on_rank0
    from excb.results.beside import refuse_folders

    from .replacing import refuse_other_search

    options: SearchOptions = given[0]
    if not options.query and options.near_duplicates is None and options.index is None and not shell.dry_run:
        raise UserError.on_all_ranks("name what to search for: --query IMAGE, or --near-duplicates")
    if shell.out is not None and shell.out.suffix not in (".html", ".htm"):
        raise UserError.on_all_ranks(f"--out {shell.out}: the page is written to a file that ends in .html")
    all_succeed(options.check)
    if shell.out is not None:
        table = [] if options.near_duplicates is None else [shell.out.with_suffix(".csv")]
        all_succeed(partial(refuse_folders, [shell.out, *table]))

    def refuse(source: "Source") -> None:
        if shell.out is not None:
            refuse_other_search(shell.out, source, duplicates=options.near_duplicates is not None)

    embeddings = _indexed(options, shell, device, refuse, options.then)
    if embeddings is None:
        return 0
    run_on_rank0(lambda: _answer(options, shell, embeddings))
    forget_unfinished(options, shell)
    return 0


def _answer(options: SearchOptions, shell: Shell, embeddings: "Embeddings") -> None:
    """Search, and print or write what was found; rank 0 does."""
    from excb.files.atomic import write_text

    from .page import SearchFindings, render_search

    reporter, queries = shell.reporter, dict.fromkeys(options.query)
    groups = _groups(options, embeddings, reporter)
    findings = SearchFindings([(name, embeddings.search(name, options.k)) for name in queries], groups)
    files = _index(options, embeddings)
    if shell.out is not None:
        with reporter.progress("pictures of the page", findings.pictures) as bar:
            page = render_search(findings, embeddings, progress=bar.advance)
        write_text(page, shell.out)
        tables = [] if groups is None else [groups.to_csv(shell.out.with_suffix(".csv"), overwrite=True)]
        files = [shell.out, *tables, *files]
    if files:
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if shell.json:
        reporter.answer(json.dumps(_to_dict(findings, embeddings), indent=2))
    else:
        _print(findings, embeddings, reporter)


def _groups(options: SearchOptions, embeddings: "Embeddings", reporter: Reporter) -> "NearDuplicates | None":
    if options.near_duplicates is None:
        return None
    from .copies.near_duplicates import find_near_duplicates

    return find_near_duplicates(embeddings, lambda: embeddings.network, options.cosine, reporter)


def _to_dict(findings: "SearchFindings", embeddings: "Embeddings") -> dict[str, Any]:
    queries = [
        {"query": name, "matches": [{"path": match.path, "cosine": match.cosine} for match in matches]}
        for name, matches in findings.queries
    ]
    duplicates = {} if findings.groups is None else findings.groups.to_dict()
    return {"queries": queries} | duplicates | embeddings.describe()


def _print(findings: "SearchFindings", embeddings: "Embeddings", reporter: Reporter) -> None:
    if findings.queries:
        rows = [
            [Path(name).name if rank == 1 else "", str(rank), f"{match.cosine:.4f}", match.path]
            for name, matches in findings.queries
            for rank, match in enumerate(matches, 1)
        ]
        title = f"Nearest of {plural(len(embeddings), 'image')} in {embeddings.root}"
        reporter.table(title, ["query", "rank", "cosine", "image"], rows)
    if findings.groups is None:
        return
    rows = [
        [*([str(number), str(len(group))] if place == 0 else ["", ""]), "keep" if path == group.keep else "", path]
        for number, group in enumerate(findings.groups[:SHOWN], 1)
        for place, path in enumerate(group)
    ]
    reporter.table(findings.groups.summary, ["group", "images", "", "image"], rows)
    if findings.groups.unread:
        reporter.warn(findings.groups.unread)
    if len(findings.groups) > SHOWN:
        rest = plural(len(findings.groups) - SHOWN, "smaller group is", "smaller groups are")
        reporter.answer(f"{rest} not listed: --json has all")


def _indexed(
    options: EmbedOptions, shell: Shell, device: "torch.device", refuse: "Refuse", then: Sequence[str] = ()
) -> "Embeddings | None":
    """`embeddings_of`, where an index can be written if one is asked for."""
    from excb.distributed.collectives import all_succeed
    from excb.files.atomic import check_writable_folder
    from excb.results.beside import refuse_folders

    from .exporting import names_beside, require_faiss
    from .replacing import refuse_other_index

    if (file := options.index) is None:
        return embeddings_of(options, shell, device, refuse, then)
    all_succeed(require_faiss)
    all_succeed(partial(check_writable_folder, file.parent))
    all_succeed(partial(refuse_folders, [file, names_beside(file)]))

    def refuse_either(source: "Source") -> None:
        refuse(source)
        refuse_other_index(file, source)

    return embeddings_of(options, shell, device, refuse_either, ["an index of the vectors", *then])


def embeddings_of(
    options: AnyImagesOptions, shell: Shell, device: "torch.device", refuse: "Refuse", then: Sequence[str] = ()
) -> "Embeddings | None":
    """The embeddings of all images; None after `--dry-run`, which says what comes `then`.

    Before anything is computed, `refuse` raises UserError where a file would be lost, unless --overwrite says it may.
    """
    from excb.distributed.collectives import run_on_rank0
    from excb.remote.home import cache_root

    from ..features.export import answer_plan, plan_features
    from . import computing
    from .replacing import Source

    reporter = shell.reporter
    task: Task = computing.open_embedding(options, device, reporter)
    if not shell.overwrite:
        run_on_rank0(lambda: refuse(Source.of_task(task)))
    cache: Path | None = options.cache or cache_root()
    if options.no_cache:  # rows still go to the disk, beside the result until that is written
        cache = _state(shell.out) if shell.out is not None else None
    if shell.dry_run:
        planned = plan_features({"images": computing.extraction_of(task)}, cache)
        if is_rank0():
            answer_plan(planned, reporter, then=then, as_json=shell.json)
        return None
    task = replace(task, cache=cache)
    return computing.compute(task, cache, reporter, loads=options.ckpt)


def _state(out: Path) -> Path:
    return out.with_name(f".{out.name}.unfinished")


def forget_unfinished(options: AnyImagesOptions, shell: Shell) -> None:
    """Remove the rows beside a result that is written, where no cache keeps them."""
    if options.no_cache and shell.out is not None and is_rank0():
        import shutil

        shutil.rmtree(_state(shell.out), ignore_errors=True)


def _saved(embeddings: "Embeddings", out: Path) -> list[Path]:
    """The files written for --out, which was looked at before."""
    from .table import csv_table

    file = embeddings.save(out, overwrite=True)
    return [file, csv_table.facts_beside(file)] if file.suffix == csv_table.SUFFIX else [file]


def _index(options: EmbedOptions, embeddings: "Embeddings") -> list[Path]:
    return [] if options.index is None else embeddings.save_index(options.index, overwrite=True)


EMBED = shell_command(
    "embed",
    "a vector for every image of a folder, labelled or not: FILE.npz, .parquet, .safetensors or .csv",
    (EmbedOptions,),
    _embed,
    metavar="FILE",
    overwrite=True,
    group="features",
    examples=(
        "embed --ckpt rn50_400ep --data photos --out photos.npz",
        "embed --ckpt runs/a --data photos --out photos.parquet --gpus 2",
    ),
)
SEARCH = shell_command(
    "search",
    "the images nearest to others, and near-duplicates, as a table and one page",
    (SearchOptions,),
    _search,
    metavar="PAGE.html",
    overwrite=True,
    group="features",
    examples=(
        "search --ckpt rn50_400ep --data photos --query a.jpg --out page.html",
        "search --ckpt rn50_400ep --data photos --near-duplicates --out page.html",
    ),
)
