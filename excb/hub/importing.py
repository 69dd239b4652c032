"""Import a foreign checkpoint file: read without running code, mapped, covered whole, kept as an exported folder."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from excb.checkpoint import exported
from excb.checkpoint.stored import Which, from_foreign, load_strictly
from excb.console import Reporter
from excb.hub import selftest
from excb.hub.catalogue import Checkpoint
from excb.hub.loading import Backbone, Entry
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
from excb.remote.home import folder_of


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
) -> Path:
    """Turn a file of any known layout into an exported folder under `$EXCB_HOME`, so that `excb.load(name)` works.

    Args:
        file: the checkpoint file.
        name: what to call it.
        checkpoint: the catalogue's row that the file is of: its architecture, preprocessing and facts are taken.
        layout: of the file; recognised if None.
        architecture: of the backbone; told by the tensors if None.
        network: of a file that holds two.
        allow: what the file may need besides tensors and plain values; see `excb.checkpoint.untrusted`.
        reporter: where to talk.

    Returns:
        The folder.

    Raises:
        UserError: the file is damaged, would run code, is of no known layout or does not cover the backbone wholly.
    """
    folder = folder_of(name)
    if checkpoint is not None:
        layout, architecture = layout or checkpoint.layout, architecture or checkpoint.architecture
        allow = {*allow, *checkpoint.globals}
    found = from_foreign(file, network=network, layout=layout, architecture=architecture, allow=allow)
    built = found.architecture.build()
    load_strictly(built, found.tensors, what=f"{file} ({found.architecture.name})")
    preprocessing = found.preprocessing if checkpoint is None else checkpoint.preprocessing
    if checkpoint is None:
        reporter.note(
            f"{file.name}: layout {found.facts['layout']}, {found.architecture.name}; preprocessing as that layout's "
            f"authors use it: resize {preprocessing.resize} {preprocessing.interpolation}, crop {preprocessing.crop}, "
            f"std {', '.join(map(str, preprocessing.std))}"
        )
        checkpoint = Checkpoint(
            name=name,
            method="unknown",
            architecture=found.architecture,
            preprocessing=preprocessing,
            source="imported",
            note=f"imported from {file.name}",
        )
    backbone = Backbone(built, preprocessing, Entry(str(file), found.architecture)).eval()
    return exported.write(
        folder,
        tensors=built.state_dict(),
        architecture=found.architecture,
        preprocessing=preprocessing,
        width=feature_width(built),
        heads=found.heads or None,
        facts={
            "network": found.facts["network"],
            "checkpoint": replace(checkpoint, name=name).to_dict(),
            "origin": {"file": file.name, "sha256": exported.sha256_of(file), "layout": found.facts["layout"]},
        },
        complete=lambda unfinished: selftest.write(unfinished, backbone),
    )
