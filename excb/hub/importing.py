"""Import a foreign checkpoint file: read without running code, mapped, covered whole, kept as an exported folder."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from excb.checkpoint import exported, untrusted
from excb.checkpoint.layouts import map_file
from excb.checkpoint.stored import Stored, Which, load_strictly
from excb.console import Reporter
from excb.hub import selftest
from excb.hub.backbone import Backbone, Entry
from excb.hub.catalogue import Checkpoint
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
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
    network: Which = "teacher",
    allow: Collection[str] = (),
    reporter: Reporter,
) -> Imported:
    """Turn a file of any known layout into an exported folder under `$EXCB_HOME`, so that `excb.load(name)` works.

    Args:
        file: the checkpoint file.
        name: what to call it.
        checkpoint: the file's row in the catalogue: sets its architecture, preprocessing and facts.
        layout: of the file; recognised if None.
        architecture: of the backbone; recognised by the tensors if None.
        network: of a file that holds two.
        allow: what the file may need besides tensors and plain values; see `excb.checkpoint.untrusted`.
        reporter: says what was recognised.

    Raises:
        UserError: the file is damaged, would run code, is of no known layout or does not cover the whole backbone.
    """
    folder = folder_of(name)
    if checkpoint is not None:
        layout, architecture = layout or checkpoint.layout, architecture or checkpoint.architecture
        allow = {*allow, *checkpoint.globals}
    stored = map_file(
        untrusted.read(file, allow=allow), source=file, layout=layout, architecture=architecture, network=network
    )
    built = stored.architecture.build()
    load_strictly(built, stored.tensors, what=f"{file} ({stored.architecture.name})")
    if checkpoint is None:
        checkpoint = _new_row(stored, name, reporter)
    facts = {
        "network": stored.facts["network"],
        "checkpoint": replace(checkpoint, name=name).to_dict(),
        "origin": {"file": file.name, "sha256": exported.sha256_of(file), "layout": stored.facts["layout"]},
    }
    backbone = Backbone(built, checkpoint.preprocessing, Entry(str(file), stored.architecture)).eval()
    exported.write(
        folder,
        tensors=built.state_dict(),
        architecture=stored.architecture,
        preprocessing=checkpoint.preprocessing,
        width=feature_width(built),
        heads=stored.heads or None,
        facts=facts,
        complete=lambda unfinished: selftest.write(unfinished, backbone),
    )
    stored = replace(stored, file=folder / exported.WEIGHTS, preprocessing=checkpoint.preprocessing, facts=facts)
    return Imported(folder, stored, built)


def _new_row(stored: Stored, name: str, reporter: Reporter) -> Checkpoint:
    """The row of a file that has none yet, with the preprocessing of its layout."""
    preprocessing = stored.preprocessing
    reporter.note(
        f"{stored.file.name}: layout {stored.facts['layout']}, {stored.architecture.name}; preprocessing as that "
        f"layout's authors use it: resize {preprocessing.resize} {preprocessing.interpolation}, crop "
        f"{preprocessing.crop}, std {', '.join(map(str, preprocessing.std))}"
    )
    return Checkpoint(
        name=name,
        method="unknown",
        architecture=stored.architecture,
        preprocessing=preprocessing,
        source="imported",
        note=f"imported from {stored.file.name}",
    )
