"""`excb.embed`, `compare`, `reproduce` and `leaderboard`: what `excb-eval` does, from Python (see `evaluate.py`)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter
from excb.errors import UserError, is_rank0, one_or_several, path_text, path_texts
from excb.option_parser import of_values

from .evaluate import Result, device_of
from .shell import FROM_SHELL

if TYPE_CHECKING:
    from torch import nn

    from excb.images.image_set import Images
    from excb.images.picture import Picture

    from .embeddings.embeddings import Embeddings
    from .leaderboard.making import Leaderboard
    from .reproduce.verdicts import Verdict


def embed(
    ckpt: "str | Path | os.PathLike[str] | nn.Module",
    images: "str | Path | Picture | Images | Sequence[Any]",
    /,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> "Embeddings":
    """A vector for every image, labelled or not: what `excb-eval embed` does, in this process.

    ::

        found = excb.embed("runs/a", "photos").search("query.jpg", k=5)

    Vectors of files are kept in the cache (`excb-eval cache`): the same call gives them at once, and an interrupted one
    continues where it was.

    Args:
        ckpt: anything that `excb.load` takes; or a Backbone, or an `nn.Module` with a transform (`excb.evaluate`).
        images: a folder of any depth, a video, shards, "torchvision:NAME" or "hf:ID"; or files, PIL images, uint8
            arrays [H, W, 3], mixed sizes, one or several.
        out: write them to this file, .npz, .parquet, .safetensors or .csv; `.save(FILE)` does it later. It may have
            vectors of the same network and of these images or fewer, which are replaced.
        overwrite: replace whatever `out` has.
        quiet: no notes and no progress.
        options: of the command, with _ for -: `batch_size=128`, `workers=4`, `resize=256`, `crop=224`, `listed=FILE`;
            `every=1.0` takes a frame of each video every second.

    Returns:
        The embeddings, with `.vectors` [N, D] float32, `.paths`, `.labels`, `.search(query, k)`, `.near_duplicates()`,
        `.clusters(k)` and `.save`.

    Raises:
        UserError: checkpoint or images cannot be used, or none of them can be read.
    """
    from torch import nn

    from excb.distributed.collectives import run_on_rank0
    from excb.distributed.parallel import joined
    from excb.results.replacing import PYTHON_ADVICE

    from .embeddings.computing import compute, open_embedding
    from .embeddings.options import EmbedOptions
    from .embeddings.replacing import Source, refuse_other_vectors
    from .embeddings.sources import Pictures, given_images
    from .embeddings.table.files import check_vectors_file

    if out is not None:
        check_vectors_file(Path(path_text(out, "out is a file")))
    refused = {name: why for name, why in FROM_SHELL.items() if name != "out"}
    refused |= {"index": "the embeddings have .save_index(FILE)"}
    given = given_images(images, options.get("every"))
    if isinstance(ckpt, nn.Module) and "device" not in options:
        options["device"] = device_of(ckpt)
    if isinstance(given, Pictures):
        options |= {"workers": 0, "no_cache": True}
    values = {"ckpt": ckpt, "data": given if isinstance(given, str) else None, **options}
    chosen = of_values(EmbedOptions, values, owner="embed", refused=refused)
    loads: str | os.PathLike[str] = "" if isinstance(ckpt, nn.Module) else ckpt
    reporter = Reporter(quiet=quiet or not is_rank0())
    with joined(chosen.device, stay=True) as device:
        task = open_embedding(chosen, device, reporter, None if isinstance(given, str) else given)
        if out is not None and not overwrite:
            source = Source.of_task(task)
            run_on_rank0(lambda: refuse_other_vectors(Path(out), source, advice=PYTHON_ADVICE))
        embeddings = compute(task, task.cache, reporter, loads=loads)
        if out is not None:
            run_on_rank0(lambda: embeddings.save(Path(out), overwrite=True))
            reporter.note(f"wrote {out}")
    return embeddings


def compare(first: Result | str | Path, second: Result | str | Path, /, *, figure: str | None = None) -> dict[str, Any]:
    """Is the difference of two results real? A paired test on the same test images, as `excb-eval compare` makes.

    Args:
        first: a result, or the file that it was saved to.
        second: another.
        figure: one figure that both have, or "A:B"; by default every main figure of both.

    Returns:
        A dictionary with "images", "warnings" and "figures". Each figure has its "difference" in points (second minus
        first), its 95 % "interval", "p_value", whether it is "real" at 5 %, and all that in "words".

    Raises:
        UserError: the test images differ, or a result has no such figure or no predictions.
    """
    from excb.inference.paired import Paired

    from .compare import Side
    from .compare import compare_results as compare_sides

    def side(which: Result | str | Path) -> Path | Side:
        if not isinstance(which, Result):
            return Path(path_text(which, "a result is one of excb.evaluate or a file"))
        if not isinstance(which.scored, Paired):
            raise UserError(f"the result of {which.name} has no score for each image: it cannot be compared")
        return Side(which.name, which.record, which.scored)

    return compare_sides(side(first), side(second), Reporter(quiet=True), figure=figure, table=False)


def reproduce(
    what: str,
    /,
    *,
    data: str | Path | Mapping[str, str | Path],
    ckpt: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> "list[Verdict]":
    """Do published figures hold? Measure them here, as `excb-eval reproduce` does.

    Args:
        what: a claim, a table, TABLE/ROW or a checkpoint (`excb-eval reproduce --list`).
        data: the claim's images; by the name of the set where claims need several, such as {"coco2017": DIR}.
        ckpt: check them on this checkpoint instead of the published one.
        quiet: no notes and no progress.
        options: of the command, with _ for -: `claims=["mine.toml"]`, `batch_size=32`.

    Returns:
        A verdict for each claim. Its `word` is PASS, FAIL or CANNOT, `why` says why, and `measured` is the figure here.

    Raises:
        UserError: there is no such claim, or its images are unusable.
    """
    from excb.distributed.parallel import joined

    from .reproduce.checking import check_claims
    from .reproduce.options import ReproduceOptions

    several = data.items() if isinstance(data, Mapping) else [("", data)]
    takes = "data is a folder or a named set, or several by name"
    named = [f"{name and name + '='}{path_text(place, takes)}" for name, place in several]
    refused = {name: why for name, why in FROM_SHELL.items() if name not in ("out", "overwrite")}
    refused |= {"list": "use the command excb-eval"}
    results = None if (out := options.pop("out", None)) is None else Path(path_text(out, "out is a folder"))
    overwrite = bool(options.pop("overwrite", False))
    chosen = of_values(
        ReproduceOptions, {"what": what, "data": named, "ckpt": ckpt, **options}, owner="reproduce", refused=refused
    )
    reporter = Reporter(quiet=quiet or not is_rank0())
    with joined(chosen.device, stay=True) as device:
        return check_claims(chosen, device, reporter, results=results, overwrite=overwrite)


def leaderboard(
    results: "Result | str | Path | Iterable[Result | str | Path]",
    /,
    *,
    out: str | Path | None = None,
    claims: Iterable[str | Path] = (),
    overwrite: bool = False,
) -> "Leaderboard":
    """Results beside published figures, ranked within one protocol only, as `excb-eval leaderboard` makes them.

    Args:
        results: results, their files, or folders of them.
        out: write leaderboard.md, .csv and .html to this folder; `.save(folder)` does it later.
        claims: files of further published figures.
        overwrite: replace files in `out` that are no leaderboard, too.

    Raises:
        UserError: a result is missing or damaged, or a file cannot be written, or is there and no leaderboard.
    """
    from .leaderboard.making import make

    place = None if out is None else Path(path_text(out, "out is a folder"))
    takes = "results are a list of results, files and folders"
    given = [
        each.record if isinstance(each, Result) else Path(path_text(each, takes)) for each in one_or_several(results)
    ]
    made = make(given, claims=list(map(Path, path_texts(claims, "claims are files"))), out=place)
    if place is not None:
        made.save(place, overwrite=overwrite)
    return made
