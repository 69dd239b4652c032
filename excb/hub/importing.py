"""Import a foreign checkpoint file: read without running code, mapped, covered whole, kept as an exported folder."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from excb.checkpoint import exported, untrusted
from excb.checkpoint.layouts import map_file
from excb.checkpoint.stored import Stored, Which, load_strictly
from excb.console import Reporter, plural
from excb.errors import UserError, require
from excb.files.foreign import sha256_of
from excb.files.records import RecordError
from excb.hub import same_weights, selftest
from excb.hub.backbone import Backbone, Entry
from excb.hub.catalogue import Checkpoint
from excb.hub.resolve import TIMM
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
from excb.networks.outputs import resized_preprocessing
from excb.networks.preprocessing import Preprocessing
from excb.networks.rules import preprocessing_from
from excb.remote.home import folder_of


@dataclass(frozen=True)
class Imported:
    """A foreign file after its import, so that nobody needs to read and build it again."""

    folder: Path  # the exported folder
    stored: Stored  # what `excb.checkpoint.reading.read` gives for that folder, with its heads
    network: nn.Module  # built from it, in eval mode


def import_file(
    file: Path,
    name: str,
    *,
    checkpoint: Checkpoint | None = None,
    layout: str | None = None,
    architecture: Architecture | None = None,
    options: Mapping[str, Any] | None = None,
    network: Which = "teacher",
    preprocessing: Mapping[str, Any] | None = None,
    drop: Collection[str] = (),
    allow: Collection[str] = (),
    keep: str = "",
    reporter: Reporter,
) -> Imported:
    """Turn a file of any known layout into an exported folder under `$EXCB_HOME`, so that `excb.load(name)` works.

    Args:
        file: the checkpoint file.
        name: what to call it.
        checkpoint: the file's row in the catalogue: sets its architecture, preprocessing and facts.
        layout: of the file; recognised if None.
        architecture: of the backbone; recognised by the tensors if None.
        options: of a backbone that is recognised, such as the number of heads, which no tensor's shape shows.
        network: of a file that holds two.
        preprocessing: fields of `Preprocessing` that are other than the file's origin says; see `changed`.
        drop: names of tensors, or of modules, that are left out and reported.
        allow: what the file may need besides tensors and plain values; see `excb.checkpoint.untrusted`.
        keep: refuse to replace other weights of this name, with this advice; as of `write_exported`.
        reporter: says what was recognised.

    Raises:
        UserError: the file is damaged, would run code, is of no known layout, does not cover the whole backbone, or
            leaves open what no tensor's shape shows.
    """
    folder = folder_of(name)
    named = architecture
    if checkpoint is not None:
        layout, architecture = layout or checkpoint.layout, architecture or checkpoint.architecture
        allow = {*allow, *checkpoint.globals}
    stored = map_file(
        untrusted.read_untrusted(file, allow=allow),
        source=file,
        layout=layout,
        architecture=architecture,
        network=network,
        options=options,
        exact=checkpoint is not None and named is None,
        drop=drop,
    )
    built = stored.architecture.build()
    load_strictly(built, stored.tensors, what=f"{file} ({stored.architecture.name})")
    if checkpoint is None:
        row = same_weights.row_of_file(file)
        if row is None and stored.architecture.name.startswith(TIMM):
            row = same_weights.row_of_timms_folder(stored, name)
        stored = same_weights.as_evaluated(stored, row, reporter.note)
        checkpoint = _new_row(stored, built, name, preprocessing or {}, reporter)
    dropped = stored.facts.get("dropped")
    facts = {
        "network": stored.facts["network"],
        "checkpoint": replace(checkpoint, name=name).to_dict(),
        "origin": {"file": file.name, "sha256": sha256_of(file), "layout": stored.facts["layout"]}
        | ({"dropped": dropped} if dropped else {}),
    }
    backbone = Backbone(built, checkpoint.preprocessing, Entry(str(file), stored.architecture)).eval()
    exported.write_exported(
        folder,
        tensors=built.state_dict(),
        architecture=stored.architecture,
        preprocessing=checkpoint.preprocessing,
        width=feature_width(built),
        heads=stored.heads or None,
        facts=facts,
        complete=lambda unfinished: selftest.write_self_test(unfinished, backbone),
        keep=keep,
    )
    stored = replace(stored, file=folder / exported.WEIGHTS, preprocessing=checkpoint.preprocessing, facts=facts)
    return Imported(folder, stored, built)


def changed(preprocessing: Preprocessing, fields: Mapping[str, Any]) -> Preprocessing:
    """A preprocessing with some fields set; where only the crop is, the resize keeps its proportion to it.

    Raises:
        UserError: a value that it could not have, or a resize smaller than the crop.
    """
    if "crop" in fields and "resize" not in fields and fields["crop"] > 0:
        preprocessing = resized_preprocessing(preprocessing, fields["crop"])
    try:
        result = preprocessing_from(preprocessing.to_dict() | dict(fields))
    except RecordError as error:
        raise UserError(str(error)) from None
    named = "crop" in fields or "resize" in fields
    require(
        result.resize >= result.crop or not named,
        f"a crop of {result.crop} pixels needs --resize {result.crop} at least",
    )
    return result


def _new_row(stored: Stored, built: nn.Module, name: str, fields: Mapping[str, Any], reporter: Reporter) -> Checkpoint:
    """The row of a file that has none yet, with the preprocessing that its origin says, but for what the user says."""
    preprocessing, dropped = changed(stored.preprocessing, fields), stored.facts.get("dropped") or []
    heads = _attention_heads(built)
    given = f", {', '.join(fields)} as asked for" if fields else ""
    attention = f", {plural(heads, 'attention head')}" if heads else ""
    lost = f", {plural(len(dropped), 'tensor')} dropped" if dropped else ""
    reporter.note(f"{stored.file.name}: layout {stored.facts['layout']}, {stored.architecture.name}{attention}{lost}")
    reporter.note(
        f"preprocessing: {preprocessing.in_short}, "
        f"mean {_listed(preprocessing.mean)}, std {_listed(preprocessing.std)} ({stored.preprocessing_from}{given}); "
        "--resize, --crop, --crop-mode, --interpolation, --mean and --std say otherwise"
    )
    without = f", without {', '.join(dropped)}" if dropped else ""
    return Checkpoint(
        name=name,
        method="unknown",
        architecture=stored.architecture,
        preprocessing=preprocessing,
        source="imported",
        note=f"imported from {stored.file.name}{without}",
    )


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(map(str, values))


def _attention_heads(network: nn.Module) -> int | None:
    """Heads of a ViT's blocks; None of other networks."""
    blocks: Any = getattr(network, "blocks", None) or [None]
    return getattr(getattr(blocks[0], "attn", None), "num_heads", None)
