"""Publish a checkpoint: exported, proven by its self-test, described by its measurements, recorded in the catalogue."""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from excb.checkpoint import exported
from excb.checkpoint.stored import Stored
from excb.console import Reporter
from excb.errors import UserError
from excb.files.atomic import write_text
from excb.hub import catalogue as rows
from excb.hub import loading, selftest
from excb.hub.backbone import Backbone
from excb.hub.catalogue import Checkpoint, Figure
from excb.remote.home import home, recorded
from excb.results.result import Result, folder_name

from .card import card
from .export import export
from .measured import results_of
from .publish import check_access, publish

# Sources of rows whose weights are the publisher's own to give away.
_OWN = ("own run", "bundled", "imported")


def push(
    source: str,
    repo: str,
    *,
    results: Sequence[Path] = (),
    tag: str | None = None,
    private: bool = False,
    licence: str,
    reporter: Reporter,
    catalogue: Path | None = None,
) -> Checkpoint:
    """Publish a checkpoint's backbone, heads, self-test, card and results in one commit of a repository.

    Args:
        source: what `excb.load` takes.
        repo: "user/name"; made if there is none.
        results: files of `excb-eval`, measured on these weights.
        tag: of the revision; by default made of version and step, or of the weights' hash where there is no step.
        private: make a repository that only its owner can read.
        licence: of the weights.
        reporter: where to talk.
        catalogue: the file to record it in; the user's by default.

    Returns:
        The row that was recorded: with the commit, and the sha256 of the weights.

    Raises:
        UserError: no token, the self-test fails, a result is of other weights, the weights are not the publisher's to
            pass on, the tag is taken, or the hub refuses.
    """
    check_access(repo, tag)
    if (named := rows.find(source)) is not None:
        _check_rights(named, licence)  # before a file is fetched that may not be passed on
    with tempfile.TemporaryDirectory(prefix="excb-push-") as temporary:
        folder = Path(temporary) / repo.partition("/")[2]
        entry, chosen = package(source, folder, results=results, licence=licence, repo=repo, tag=tag)
        reporter.note(f"{repo}: self-test passed; uploading {_size(folder)} as {chosen}")
        commit = publish(folder, repo, tag=chosen, private=private, message=f"{entry.name} {chosen}")
    entry = replace(entry, locations=(f"hf-hub:{repo}@{commit}",))  # a tag could be moved, a commit cannot
    rows.add(entry, catalogue or home() / rows.USERS)
    reporter.note(
        f'published: excb.load("hf-hub:{repo}@{chosen}"), here also excb.load("{entry.name}"). For everyone, add:'
    )
    reporter.answer(rows.to_toml(entry))
    return entry


def package(
    source: str,
    folder: Path,
    *,
    results: Sequence[Path] = (),
    licence: str,
    repo: str | None = None,
    tag: str | None = None,
) -> tuple[Checkpoint, str]:
    """Write all that is published of a checkpoint into a folder, whose name is the checkpoint's, and prove it.

    Args:
        source: what `excb.load` takes.
        folder: where to.
        results: files of `excb-eval`, measured on these weights.
        licence: of the weights.
        repo: "user/name" of the repository that it will be in, if any.
        tag: of the revision; made up if None.

    Returns:
        The catalogue's row, and the tag.

    Raises:
        UserError: the self-test fails, a result is of other weights, or the weights are not the publisher's to pass on.
    """
    named = rows.find(source)
    stored = loading.read(source)
    row = Checkpoint.from_dict(found) if (found := stored.facts.get("checkpoint")) else named
    _check_rights(row, licence)
    export(str(stored.file), folder)
    block = exported.read_config(folder)["excb"]
    _check_origin(block)
    backbone = loading.load(folder)  # what would be uploaded, not what it was made of
    _prove(folder, backbone, stored.file.parent)
    measured = results_of(backbone.network.state_dict(), results)
    sha256 = exported.sha256_of(folder / exported.WEIGHTS)
    step = block["step"]
    chosen = tag or (f"v{block['version']}-step{step}" if step is not None else sha256[:8])
    entry = _entry(row, backbone, measured, name=folder.name, licence=licence, sha256=sha256)
    if repo is not None:
        entry = replace(entry, locations=(f"hf-hub:{repo}@{chosen}",))
    _describe(folder, entry, stored, measured)
    return entry, chosen


# ---------------------------------------------------------------------------------------------------------------------
# What may be published
# ---------------------------------------------------------------------------------------------------------------------


def _check_rights(row: Checkpoint | None, licence: str) -> None:
    """Refuse weights that their authors do not let others host, and a licence that is not theirs."""
    if row is None:
        return
    if row.source not in _OWN and not row.redistributable:
        reason = f"their licence is {row.licence}" if row.licence else "their authors state no licence"
        raise UserError(f"{row.name} may not be published: {reason} ({row.source}); excb.load fetches it from there")
    if row.licence and _letters(row.licence) != _letters(licence):
        raise UserError(f"{row.name} is under {row.licence} ({row.source}): publish it with --licence '{row.licence}'")


def _letters(licence: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", licence.lower())


def _check_origin(facts: dict[str, Any]) -> None:
    """Refuse a file of somebody else's under another name."""
    if "timm" in facts:
        raise UserError("these weights are in a repository of timm's: they are published already")
    sha256 = (facts.get("origin") or {}).get("sha256")
    for row in rows.checkpoints() if sha256 else ():
        known = [row.digest, *(f"sha256:{recorded(place)}" for place in row.locations)]
        if not row.redistributable and any(each and f"sha256:{sha256}".startswith(each) for each in known):
            _check_rights(row, "")


def _prove(folder: Path, backbone: Backbone, source: Path) -> None:
    """Refuse weights that are as first initialised, and any that fail the self-test made now or the source's own."""
    selftest.trained(backbone)
    tests = [
        exported.read_part(place, exported.SELFTEST)
        for place in (folder, source)
        if (place / exported.CONFIG).is_file()
    ]
    if tests[0] is None:
        raise UserError(f"{folder.name} has no self-test: nothing is published without one")
    for expected in tests:
        if expected is not None:
            selftest.check(backbone, expected)


# ---------------------------------------------------------------------------------------------------------------------
# What is said of it
# ---------------------------------------------------------------------------------------------------------------------


def _entry(
    row: Checkpoint | None,
    backbone: Backbone,
    results: Mapping[str, Result],
    *,
    name: str,
    licence: str,
    sha256: str,
) -> Checkpoint:
    """The row of what is published, which is nowhere yet."""
    entry = backbone.entry
    epochs = round(entry.epoch) if entry.epoch else None
    own = Checkpoint(
        name=name,
        method="ExCB" if entry.recipe else "unknown",
        architecture=entry.architecture,
        preprocessing=backbone.transform,
        source="own run",
        network=entry.network,
        epochs=epochs or None,
        batch=entry.recipe.get("optim", {}).get("batch"),
    )
    return replace(
        row or own,
        name=own.name,
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
            Figure(name, value, f"measured, {result.protocol} {result.protocol_hash}")
            for result in results.values()
            for name, value in result.figures.items()
        ),
    )


def _describe(folder: Path, entry: Checkpoint, stored: Stored, results: Mapping[str, Result]) -> None:
    """Write what the folder lacks: the row and facts of the training in config.json, results, and the card."""
    config = exported.read_config(folder)
    block = config["excb"]
    block["checkpoint"] = entry.to_dict()
    if data := stored.contents.get("data"):
        block["training"] = {
            "data": folder_name(str(data.get("root"))),
            "images": data.get("images"),
            "fingerprint": data.get("fingerprint"),
            "seconds": stored.contents.get("seconds"),
        }
    write_text(json.dumps(config, indent=2, allow_nan=False) + "\n", folder / exported.CONFIG)
    shutil.rmtree(folder / exported.RESULTS, ignore_errors=True)
    for name, result in results.items():
        write_text(result.to_json() + "\n", folder / exported.RESULTS / f"{name}.json")
    write_text(card(folder, list(results.values())), folder / exported.CARD)


def _size(folder: Path) -> str:
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"
