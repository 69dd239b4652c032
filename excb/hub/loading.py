"""The reading side of the zoo: `load` gives any checkpoint's backbone, every tensor matched or refused."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from excb.checkpoint import stored
from excb.checkpoint.stored import Stored, Which
from excb.console import Reporter
from excb.errors import UserError, nearest_name
from excb.hub.catalogue import Checkpoint, checkpoints, find
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.remote import byte_ranges

if TYPE_CHECKING:
    from excb.hub.trained_heads import Heads
    from excb.networks.outputs import Output

HUB, TIMM, WEB = "hf-hub:", "timm:", ("https://", "http://")


@dataclass(frozen=True)
class Entry:
    """What is known of a loaded checkpoint.

    Args:
        source: the file the weights came from.
        architecture: what was built.
        network: which of ExCB's two networks it is; the paper evaluates the teacher.
        step: optimization steps done.
        epoch: epochs done.
        recipe: every option it was trained with, by section; empty where unknown.
        layout: of a foreign file, as it was recognised.
        checkpoint: the catalogue's row: licence, published figures and what else is known; None where it has none.
    """

    source: str
    architecture: Architecture
    network: str = "teacher"
    step: int | None = None
    epoch: float | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    layout: str | None = None
    checkpoint: Checkpoint | None = None


class Backbone(nn.Module):
    """A loaded backbone: images [B, 3, H, W] -> features, by default [B, `width`].

    Attributes:
        network: the plain torchvision or timm module.
        transform: preprocessing of the checkpoint, PIL image -> [3, H, W].
        entry: where it comes from and how it was trained.
        width: D, the features' width; of a pyramid four widths.
        strides: pixels of the image between neighbours in a map; empty without maps.
        heads: projectors, predictor, centroids and sizes, if `load` was asked for them.
    """

    width: Any  # an int but for pyramids
    strides: tuple[int, ...]

    def __init__(
        self, network: nn.Module, transform: Preprocessing, entry: Entry, *, features: "Output" = "pool"
    ) -> None:
        from excb.networks.outputs import output

        super().__init__()
        self.network, self.transform, self.entry = network, transform, entry
        self.heads: Heads | None = None
        reader = output(network, features)
        self.width, self.strides = reader.width, reader.strides
        self.__dict__["reader"] = reader  # no child of this module: `network` would stand twice in its state

    def forward(self, images: Tensor) -> Any:
        """Features of normalised images (see `transform`): a tensor, or of a pyramid a list of four."""
        return self.__dict__["reader"](images)


def load(
    name: str | Path,
    *,
    network: Which = "teacher",
    features: "Output" = "pool",
    img_size: int | None = None,
    heads: bool = False,
) -> Backbone:
    """Load a checkpoint's backbone in eval mode, on the CPU.

    Args:
        name: a name of `excb.checkpoints()`; a run folder (its newest intact checkpoint), a checkpoint file of ours or
            of any known layout, or an exported folder, each also at s3://, gs:// and all that fsspec reaches;
            "hf-hub:user/repo[@revision]"; "https://..."; or "timm:NAME".
        network: the EMA teacher, which the paper evaluates, or the student. Exported folders hold one of them.
        features: what the backbone returns. "pool" [B, D]; "last4" [B, 4 D], the class tokens of a ViT's last four
            blocks; "map" [B, D, H / stride, W / stride]; "pyramid", four maps of strides 4, 8, 16 and 32.
        img_size: side of the images in pixels, if not the checkpoint's: position embeddings are interpolated, and
            `transform` resizes and crops to it.
        heads: also load projectors, predictor, centroids and cluster sizes, as `Backbone.heads`.

    Returns:
        The backbone. Weights are fetched on first use and verified before they are read; later loads need no network.

    Raises:
        UserError: nothing of that name, nowhere to be had, not as its sha256 says, not a checkpoint, or any tensor
            missing, unexpected or misshapen.
    """
    from excb.checkpoint.coverage import blueprint
    from excb.networks.outputs import resampled, resized_preprocessing, sized

    found = locate(name, network=network, heads=heads)
    architecture, preprocessing = found.architecture, found.preprocessing
    # First without memory for weights: what a file says of its network may be terabytes, and its tensors are not.
    stored.check_fit(blueprint(architecture), found.tensors, what=f"{found.file} ({architecture.name})")
    if img_size is not None:
        architecture = sized(architecture, img_size)
        preprocessing = resized_preprocessing(preprocessing, img_size)
    built = architecture.build()
    tensors = found.tensors
    if img_size is not None:
        tensors = resampled(tensors, built, img_size=found.architecture.options.get("img_size"))
    stored.load_strictly(built, tensors, what=f"{found.file} ({architecture.name})")
    backbone = Backbone(built, preprocessing, _entry(found, architecture), features=features).eval()
    if heads:
        backbone.heads = _heads(found)
    return backbone


def _entry(found: Stored, architecture: Architecture) -> Entry:
    facts, row = found.facts, found.facts.get("checkpoint")
    return Entry(
        source=str(found.file),
        architecture=architecture,
        network=facts.get("network") or "teacher",
        step=facts.get("step"),
        epoch=facts.get("epoch"),
        recipe=facts.get("recipe") or {},
        layout=facts.get("layout") or (facts.get("origin") or {}).get("layout"),
        checkpoint=row if isinstance(row, Checkpoint) or row is None else Checkpoint.from_dict(row),
    )


def _heads(found: Stored) -> "Heads":
    from excb.hub.trained_heads import Heads

    if not found.heads:
        raise UserError(
            f"{found.file} holds a backbone without heads (projector and centroids): name a run of excb-pretrain, an "
            "export of one, or a full checkpoint of ExCB's authors or of DINO"
        )
    return Heads.of(found.heads, source=str(found.file))


# ---------------------------------------------------------------------------------------------------------------------
# Where a name leads
# ---------------------------------------------------------------------------------------------------------------------


def locate(name: str | Path, *, network: Which = "teacher", heads: bool = False) -> Stored:
    """Read what a name stands for, fetched first where need be; `load` builds it.

    Raises:
        UserError: as `load`, but for tensors that do not fit.
    """
    if isinstance(name, str) and name.startswith(TIMM):
        from excb.hub.timm_models import read

        if network != "teacher":
            raise UserError(f"{name} has no {network}: leave --network out")
        return read(name)
    return stored.read(obtain(name, network=network), network=network, heads=heads)


def obtain(name: str | Path, *, network: Which = "teacher") -> Path:
    """The local path of what a name stands for, after fetching and importing it where that was not done before.

    A name of the catalogue comes before a path that is spelt alike: write ./NAME for that.

    Raises:
        UserError: there is no such name, or it is nowhere to be had.
    """
    if isinstance(name, Path):
        return name
    if name.startswith(HUB):
        return _from_hub(name, Reporter())
    if name.startswith(WEB):
        return _from_web(name, network)
    if byte_ranges.is_remote(name):
        from excb.hub.buckets import fetch_kept

        return fetch_kept(name, Reporter())
    if (row := find(name)) is not None:
        return _of_row(row, network)
    try:
        there = Path(name).exists()
    except OSError as error:  # such as a name that is too long
        raise UserError(f"no checkpoint can lie at '{name}': {error.strerror}") from None
    if not there and "/" not in name and not Path(name).suffix:
        names = [row.name for row in checkpoints()]
        raise UserError(
            f"no checkpoint is called '{name}'{nearest_name(name, names)}, and nothing lies at that path: "
            "`excb-zoo list` shows all names"
        )
    return Path(name)


def here(row: Checkpoint, network: Which = "teacher") -> Path | None:
    """The exported folder of a catalogue's row that needs no fetching: bundled, or imported before."""
    from excb.checkpoint.exported import CONFIG
    from excb.hub.catalogue import bundled_folder
    from excb.remote.home import folder_of

    folder = bundled_folder(row.name) or folder_of(row.name if network == "teacher" else f"{row.name}-{network}")
    return folder if (folder / CONFIG).is_file() else None


def _of_row(row: Checkpoint, network: Which) -> Path:
    """The exported folder of a catalogue's row, from the first of its locations that gives it."""
    from excb.hub.importing import import_file
    from excb.remote.fetch import fetch_url

    if (folder := here(row, network)) is not None:
        return folder
    if not row.locations:
        raise UserError(f"{row.name} has no weights to load: {row.note or row.source}")
    reporter, failures = Reporter(), []
    for location in row.locations:
        try:
            if location.startswith(HUB):
                return _from_hub(location, reporter)
            file = fetch_url(location, digest=row.digest, reporter=reporter, name=row.name)
        except UserError as error:
            failures.append(str(error))
            continue
        name = row.name if network == "teacher" else f"{row.name}-{network}"
        return import_file(file, name, checkpoint=row, network=network, reporter=reporter)
    if len(failures) == 1:
        raise UserError(failures[0])
    raise UserError(f"{row.name} is to be had from none of its {len(failures)} places: {'; '.join(failures)}")


def _from_hub(location: str, reporter: Reporter) -> Path:
    from excb.remote.fetch import fetch_repo

    repo, _, revision = location.removeprefix(HUB).partition("@")
    return fetch_repo(repo, revision or None, reporter=reporter)


def _from_web(address: str, network: Which) -> Path:
    """A file at an address, imported once under a name made of the address."""
    from excb.checkpoint.exported import CONFIG
    from excb.hub.importing import import_file
    from excb.remote.fetch import fetch_url
    from excb.remote.home import folder_of

    name = f"web-{hashlib.sha256(f'{network} {address}'.encode(errors='surrogatepass')).hexdigest()[:16]}"
    if not (folder_of(name) / CONFIG).is_file():
        reporter = Reporter()
        file = fetch_url(address, digest=None, reporter=reporter, name=address)
        import_file(file, name, network=network, reporter=reporter)
    return folder_of(name)
