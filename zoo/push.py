"""Publish a checkpoint: export it, prove it by its self-test, describe it, and record it in the catalogue."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from excb.checkpoint import exported, teachers
from excb.console import Reporter, plural
from excb.errors import UserError, require
from excb.files.atomic import new_folder, write_text
from excb.files.foreign import sha256_of
from excb.files.markdown import line
from excb.hub import catalogue as rows
from excb.hub import loading, selftest
from excb.hub.backbone import Backbone
from excb.hub.catalogue import Checkpoint, Figure, measured_on, method_of
from excb.remote.home import home, recorded
from excb.results.replacing import FOLDER_ADVICE
from excb.results.result import ResultRecord, folder_name

from .card import card
from .eval_results import eval_results
from .export import export
from .measured import results_by_file
from .publish import check_access, publish
from .teachers import same_licence

# Sources of rows whose weights belong to the publisher.
_OWN = ("own run", "bundled", "imported")


def push(
    source: str,
    repo: str,
    *,
    results: Sequence[Path] = (),
    tag: str | None = None,
    private: bool = False,
    licence: str,
    untested: str | None = None,
    reporter: Reporter,
    catalogue: Path | None = None,
) -> Checkpoint:
    """Publish a checkpoint's backbone, heads, self-test, card and results in one commit of a repository.

    Args:
        source: what `excb.load` takes.
        repo: "user/name"; created if it does not exist.
        results: files of `excb-eval`, measured on these weights.
        tag: of the revision; by default from version and step, or from the weights' hash without a step.
        private: create a repository that only its owner can read.
        licence: of the weights.
        untested: why the self-test is left out, which the card then says; None runs it.
        reporter: prints notes.
        catalogue: the file to record it in; the user's by default.

    Returns:
        The recorded row, with the commit and the sha256 of the weights.

    Raises:
        UserError: no token, the self-test fails, a result is of other weights, their licence forbids publishing,
            the tag is taken, or the hub refuses.
    """
    check_access(repo, tag)
    if (named := rows.find(source)) is not None:
        _check_rights(named, licence)  # before fetching a file that may not be published
    with tempfile.TemporaryDirectory(prefix="excb-push-") as temporary:
        folder = Path(temporary) / repo.partition("/")[2]
        entry, revision = package(
            source, folder, results=results, licence=licence, repo=repo, tag=tag, untested=untested
        )
        sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        total = f"{plural(len(sizes), 'file')}, {sum(sizes) / 1e6:.1f} MB"
        tested = "self-test passed" if untested is None else "not tested"
        reporter.note(f"{repo}: {tested}; uploading {total} as {revision}")
        commit = publish(folder, repo, tag=revision, private=private, message=f"{entry.name} {revision}")
    entry = replace(entry, locations=(f"hf-hub:{repo}@{commit}",))  # a tag could be moved, a commit cannot
    rows.add(entry, catalogue or home() / rows.USERS)
    reporter.note(f'published: excb.load("hf-hub:{repo}@{revision}"), here also excb.load("{entry.name}")')
    return entry


def package(
    source: str,
    folder: Path,
    *,
    results: Sequence[Path] = (),
    licence: str,
    repo: str | None = None,
    tag: str | None = None,
    untested: str | None = None,
    overwrite: bool = False,
) -> tuple[Checkpoint, str]:
    """Write all that is published of a checkpoint into a folder named after it, once it is proven.

    Args:
        source: what `excb.load` takes.
        folder: to write; it appears whole, or what was there before stays.
        results: files of `excb-eval`, measured on these weights.
        licence: of the weights.
        repo: "user/name" of the repository that it will be in, if any.
        tag: of the revision; the default of `push` if None.
        untested: why the self-test is left out, as in `push`.
        overwrite: replace a folder of other weights.

    Returns:
        The catalogue's row, and the tag.

    Raises:
        UserError: the self-test fails, a result is of other weights, the weights' licence forbids publishing, or the
            folder cannot be written.
    """
    require(untested is None or bool(untested.strip()), 'say why it is not tested, as --untested "trained on noise"')
    named = rows.find(source)
    stored = loading.read(source)
    row = Checkpoint.from_dict(recorded_row) if (recorded_row := stored.facts.get("checkpoint")) else named
    _check_rights(row, licence)
    target = folder.resolve()
    exported.check_replaceable(target)
    with new_folder(target) as unfinished:
        export(str(stored.file), unfinished)
        block = exported.read_config(unfinished)["excb"]
        _check_origin(block)
        backbone = loading.load(unfinished)  # the export itself, not its source
        if untested is None:
            _prove(target.name, unfinished, backbone, stored.file.parent)
        measured = results_by_file(backbone.network.state_dict(), results)
        sha256 = sha256_of(unfinished / exported.WEIGHTS)
        if not overwrite:
            exported.refuse_other_weights(target, sha256, advice=FOLDER_ADVICE)
        step = block["step"]
        revision = tag or (f"v{block['version']}-step{step}" if step is not None else sha256[:8])
        entry = _entry(row, backbone, measured, name=target.name, licence=licence, sha256=sha256)
        if repo is not None:
            entry = replace(entry, locations=(f"hf-hub:{repo}@{revision}",))
        _describe(unfinished, entry, measured, untested, repo=repo, place=f"./{target.name}")
    return entry, revision


def _check_rights(row: Checkpoint | None, licence: str) -> None:
    """Refuse weights that others may not host, and a licence other than theirs."""
    if row is None:
        return
    if row.source not in _OWN and not row.redistributable:
        reason = f"their licence is {row.licence}" if row.licence else "their authors state no licence"
        raise UserError(f"{row.name} may not be published: {reason} ({row.source}); excb.load fetches it from there")
    if row.licence and not same_licence(row.licence, licence):
        raise UserError(f"{row.name} is under {row.licence} ({row.source}): publish it with --licence '{row.licence}'")


def _check_origin(facts: dict[str, Any]) -> None:
    """Refuse another author's file under a new name."""
    if "timm" in facts:
        raise UserError("these weights come from a timm repository: they are published already")
    sha256 = (facts.get("origin") or {}).get("sha256")
    for row in rows.checkpoints() if sha256 else ():
        digests = [row.digest, *(f"sha256:{recorded(place)}" for place in row.locations)]
        if not row.redistributable and any(each and f"sha256:{sha256}".startswith(each) for each in digests):
            _check_rights(row, "")


def _prove(name: str, folder: Path, backbone: Backbone, source: Path) -> None:
    """Refuse untrained weights, and any that fail the new self-test or the source's own."""
    try:
        selftest.check_trained(backbone)
    except UserError as error:
        raise UserError(f"{error}, or say why you publish it untested: --untested WHY") from None
    folders = [place for place in (folder, source) if (place / exported.CONFIG).is_file()]
    tests = [exported.read_part(place, exported.SELFTEST) for place in folders]
    if tests[0] is None:
        raise UserError(f"{name} has no self-test: only checkpoints with one are published")
    for expected in tests:
        if expected is not None:
            selftest.check_self_test(backbone, expected)


def _entry(
    row: Checkpoint | None,
    backbone: Backbone,
    results: Mapping[str, ResultRecord],
    *,
    name: str,
    licence: str,
    sha256: str,
) -> Checkpoint:
    """The row of the published checkpoint, without a location yet."""
    entry = backbone.entry
    own = Checkpoint(
        name=name,
        method=method_of(entry.recipe),
        architecture=entry.architecture,
        preprocessing=backbone.transform,
        source="own run",
        network=entry.network,
        epochs=round(entry.epoch or 0) or None,
        batch=entry.recipe.get("optim", {}).get("batch"),
    )
    return replace(
        row or own,
        name=own.name,
        method=own.method
        if row is None or teachers.teachers_in(entry.recipe)
        else row.method,  # a student is called one
        aliases=(),
        architecture=own.architecture,
        preprocessing=own.preprocessing,
        locations=(),
        digest=f"sha256:{sha256}",
        layout=None,
        globals=(),
        licence=licence,
        redistributable=True,
        figures=tuple(
            Figure(name, value, measured_on(_images(result), f"{result.protocol} {result.protocol_hash}"))
            for result in results.values()
            for name, value in result.figures.items()
        ),
    )


def _images(result: ResultRecord) -> str:
    """The usual name of the test images; for a folder with train/ and test/, the folder's own."""
    root = line(folder_name(str(result.data.get("test", {}).get("root", ""))))
    above, _, last = root.rpartition("/")
    return above if above and last in ("train", "test", "val") else root


def _describe(
    folder: Path,
    entry: Checkpoint,
    results: Mapping[str, ResultRecord],
    untested: str | None,
    *,
    repo: str | None,
    place: str,
) -> None:
    """Add the row to config.json, and write results, for the hub too, and card, with `place` where there is no repo."""
    config = exported.read_config(folder)
    block = config["excb"]
    block["checkpoint"] = entry.to_dict()
    block.pop("untested", None)
    if untested is not None:
        block["untested"] = " ".join(untested.split())
    write_text(json.dumps(config, indent=2, allow_nan=False) + "\n", folder / exported.CONFIG)
    for name, result in results.items():
        result.write(folder / exported.RESULTS / f"{name}.json")
        if (entries := eval_results(result, repo=repo)) is not None:
            write_text(entries, folder / exported.EVAL_RESULTS / f"{name}.yaml")
    write_text(card(folder, list(results.values()), place=place), folder / exported.CARD)
