"""`excb-eval overlap`: its options, and what it does in each process."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural
from excb.errors import UserError
from excb.results.result import interval_text

from ..protocol import Work
from ..runner import forecast, refuse_results_among
from ..shell import Shell, shell_command
from .options import OverlapOptions

if TYPE_CHECKING:
    import torch

    from excb.images.image_set import Images
    from excb.results.beside import FileBeside

    from ..task import Task
    from .auditing import Audit

LISTED = 20  # pairs that the terminal lists


def _overlap(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from excb.distributed.collectives import all_succeed, run_on_rank0

    from ..data.sources import refuse_idle_root
    from ..opening import task_on
    from .auditing import audit
    from .hashing import of_bits
    from .sets import both_sets

    options: OverlapOptions = given[0]
    if shell.out is not None and shell.out.suffix != ".json":
        raise UserError.on_all_ranks(
            f"--out {shell.out}: the result is written to a file that ends in .json, with others beside it"
        )
    all_succeed(options.check)
    reporter = shell.reporter
    sources = options.train or "", options.test or ""  # `check` refuses empty ones
    all_succeed(partial(refuse_idle_root, options.data_root, *sources))
    train, test = all_succeed(lambda: both_sets(*sources, options.data_root, reporter))
    if shell.out is not None:
        refuse_results_among((train, test), shell.out.parent)
    task = None if options.ckpt is None else task_on(options, train, test, device, reporter=reporter)
    hashing = _hashing(options, train, test, reporter if task is None else Reporter(quiet=True))
    if shell.out is not None:
        run_on_rank0(partial(_refuse_others, shell.out, task or hashing, overwrite=shell.overwrite))
    if shell.dry_run:
        then = (
            "a perceptual hash of every image",
            f"{plural(options.k, 'nearest train image')} of each test image, twice",
        )
        forecast(task or hashing, Work({"train": train, "test": test}, then=then), reporter, as_json=shell.json)
        return 0
    thresholds = {} if options.cosine is None else {"features": options.cosine}
    thresholds |= {} if options.bits is None else {"hash": of_bits(options.bits)}
    audited = audit(
        task,
        hashing,
        reporter,
        thresholds=thresholds,
        k=options.k,
        planted=options.calibrate,
        by_class=options.control == "classes",
    )
    run_on_rank0(partial(_answer, shell, audited, reporter))
    return 0


def _beside() -> "list[FileBeside]":
    from excb.results.beside import page_beside, table_beside

    from .auditing import PAIRS

    return [table_beside("{}.pairs.csv", "table of pairs", PAIRS), page_beside("{}.html", "overlap")]


def _refuse_others(out: Path, task: "Task", *, overwrite: bool) -> None:
    """Refuse to replace a result of other weights or folders; images of one folder may be left out as unreadable.

    Raises:
        UserError: the file has one, a file beside it holds something else, or a folder is in one's place.
    """
    from excb.networks.backbone import weights_hash
    from excb.results.beside import refuse_folders, refuse_other_beside
    from excb.results.replacing import refuse_other_result, result_at

    beside = _beside()
    refuse_folders([out, *(each.at(out) for each in beside)])
    if overwrite:
        return

    if (before := result_at(out)) is not None:
        roots = {name: facts.get("root") for name, facts in before.data.items() if isinstance(facts, dict)}
        refuse_other_result(
            before,
            out,
            is_protocol=lambda name: name == "overlap",
            weights=weights_hash(task.backbone.network),
            images={name: each.fingerprint for name, each in task.sets.items() if roots.get(name) != str(each.root)},
        )
    refuse_other_beside(out, beside)


def _hashing(options: OverlapOptions, train: "Images", test: "Images", reporter: Reporter) -> "Task":
    """Hashes are computed on the CPU: reading the images takes the time."""
    from ..task import Task
    from .hashing import PerceptualHash

    return Task.prepare(
        PerceptualHash(),
        train,
        test,
        device="cpu",
        workers=options.workers,
        pixel_range=options.range,
        channels=options.channels,
        reporter=reporter,
    )


def _answer(shell: Shell, audited: "Audit", reporter: Reporter) -> None:
    """Write the files, and print what was found; rank 0 does."""
    from excb.files.atomic import write_text

    from .page import render_audit, shown_pairs

    if shell.out is not None:
        listed, shown_page = (each.at(shell.out) for each in _beside())
        with reporter.progress("pictures of the page", len(shown_pairs(audited))) as bar:
            page = render_audit(audited, progress=bar.advance)
        write_text(audited.to_csv(), listed)
        write_text(page, shown_page)
        audited.result.write(shell.out)
        reporter.note(f"wrote {shell.out}, {listed}, {shown_page}")
    if shell.json:
        pairs = [audited.describe(pair) for pair in audited.pairs]
        reporter.answer(json.dumps(json.loads(audited.result.to_json()) | {"pairs": pairs}, indent=2))
    else:
        _print(audited, reporter)


def _print(audited: "Audit", reporter: Reporter) -> None:
    from .page import TITLES, calibration_table, near_from

    header, rows = calibration_table(audited)
    if rows:
        planted = plural(audited.calibration.planted, "train image")
        reporter.table(f"Planted copies of {planted}, and images that are none", header, rows)
    else:
        names = audited.calibration.thresholds
        reporter.answer(f"Near from {' or '.join(near_from(audited, name) for name in names)}, not calibrated")
    result, images = audited.result, len({pair.test for pair in audited.pairs})
    title = (
        f"{images:,} of {plural(len(audited.test), 'test image')} overlap with "
        f"{plural(len(audited.train), 'train image')}"
    )
    figures = [
        [words, f"{result.figures[name]:.2f}", interval_text(result.intervals.get(name))]
        for name, words in TITLES.items()
        if name in result.figures
    ]
    reporter.table(title, ["figure", "%", "95 % interval"], figures)
    for note in result.notes:
        reporter.note(note)
    if not audited.pairs:
        return
    described = [audited.describe(pair) for pair in audited.pairs[:LISTED]]
    rows = [
        [each["test"], each["train"], "" if each["cosine"] is None else f"{each['cosine']:.3f}", str(each["bits"]),
         each["by"], "yes" if each["mirrored"] else "no"]
        for each in described
    ]  # fmt: skip
    reporter.table(f"{plural(len(audited.pairs), 'pair')}", ["test", "train", "cosine", "bits", "by", "mirrored"], rows)
    if len(audited.pairs) > LISTED:
        more = plural(len(audited.pairs) - LISTED, "more pair is", "more pairs are")
        reporter.answer(f"{more} not listed: --json and --out have all")


OVERLAP = shell_command(
    "overlap",
    "near-duplicates between pretraining and test images; the k-NN figure with and without them",
    (OverlapOptions,),
    _overlap,
    overwrite=True,
    group="everything, and against others",
    examples=(
        "overlap --train photos --test benchmark --out overlap.json",
        "overlap --train photos/train --test photos/test --ckpt rn50_400ep --out overlap.json",
    ),
)
