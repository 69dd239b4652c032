"""Folders of transformers (config.json, weights, preprocessor_config.json), of this machine or from the hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excb.checkpoint import exported, untrusted
from excb.checkpoint.coverage import blueprint
from excb.checkpoint.stored import Stored
from excb.console import few, plural
from excb.errors import UserError, first_line, require
from excb.files import json_text
from excb.files.foreign import parsing, read_text
from excb.files.records import RecordError
from excb.hub.from_transformers.processor import preprocessing_from_processor
from excb.networks.architecture import Architecture
from excb.networks.from_transformers import families
from excb.networks.rules import architecture_from, preprocessing_from

PROCESSOR, INDEX, PICKLED = "preprocessor_config.json", "model.safetensors.index.json", "pytorch_model.bin"
# What a file may have besides the encoder: heads, the half that reads texts, and what only training uses.
_OTHERS = (
    *("classifier", "pooler.", "text_model.", "text_projection", "visual_projection", "logit_", "decoder."),
    *("embeddings.position_ids", "embeddings.mask_token", "mask_token"),
)


def saved_folder(path: Path) -> Path | None:
    """The folder that transformers saved a network in, by its path or by that of its weights; None of all others."""
    folder = path.parent if path.name in (exported.WEIGHTS, INDEX, PICKLED) else path
    if not (folder / exported.CONFIG).is_file():
        return None
    config = exported.read_config(folder)
    return folder if "model_type" in config and not {"excb", "architecture"} & config.keys() else None


def read(folder: Path) -> Stored:
    """Read a folder of transformers: the encoder of images, without heads. No code that it names is run.

    Raises:
        UserError: transformers is not installed, the type of network or the preprocessing is not known here, or a file
            is missing or damaged.
    """
    config = exported.read_config(folder)
    kind, stated = _encoder_in(config)
    try:
        record = {"name": families.PREFIX + kind, "options": families.stated_options(kind, stated)}
        architecture = architecture_from(record)
        preprocessing = preprocessing_from(preprocessing_from_processor(_processor_in(folder)).to_dict())
    except RecordError as error:
        raise UserError(f"{folder}: {error}") from None
    channels = architecture.options.get("num_channels", 3)
    require(
        channels == 3, f"{folder} takes images of {plural(channels, 'channel')}: only RGB is supported of transformers"
    )
    file, tensors = _tensors_in(folder)
    own = _own(kind, architecture, tensors, source=file)
    return Stored(file, own, architecture, preprocessing, facts={"network": "pretrained"})


def _encoder_in(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The type and the config of the encoder of images, which may be a part of a larger network."""
    kind = str(config["model_type"])
    inner = config.get("vision_config")
    if kind in families.OF_IMAGES:
        return families.OF_IMAGES[kind], inner if isinstance(inner, dict) else {}
    return kind, config


def _processor_in(folder: Path) -> dict[str, Any]:
    file = folder / PROCESSOR
    try:
        values = json_text.parse(read_text(file))
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {PROCESSOR}, so nothing says how its images are prepared: save the image processor there "
            "too, with save_pretrained, or fetch the file"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}): fetch it again") from None
    require(isinstance(values, dict), f"{file} is not a JSON object: fetch it again")
    return dict(values)


def _tensors_in(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The weights of a folder, in one file or in several, and the file that stands for them."""
    for name in (exported.WEIGHTS, PICKLED):
        if (folder / name).is_file():
            return folder / name, _read(folder / name)
    index = folder / INDEX
    require(index.is_file(), f"{folder} has neither {exported.WEIGHTS} nor {INDEX} nor {PICKLED}: fetch it again")
    try:
        parts = sorted({str(part) for part in json_text.parse(read_text(index))["weight_map"].values()})
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise UserError(f"{index} cannot be read ({error}): fetch it again") from None
    require(all(Path(part).name == part for part in parts), f"{index} names files of other folders: fetch it again")
    return index, {name: value for part in parts for name, value in _read(folder / part).items()}


def _read(file: Path) -> dict[str, Tensor]:
    contents = untrusted.read_untrusted(file)
    tensors = {str(name): value for name, value in contents.items() if isinstance(value, Tensor)}
    require(bool(tensors), f"{file} holds no tensors by name: fetch it again")
    return tensors


def _own(kind: str, architecture: Architecture, tensors: dict[str, Tensor], *, source: Path) -> dict[str, Tensor]:
    """The encoder's tensors by the names that it has here, float32: transformers itself knows how files name them."""
    wanted = blueprint(architecture)
    # Before memory is taken: a config may state a network of terabytes without having its tensors.
    sizes = [sum(value.numel() for value in each.values()) for each in (wanted, tensors)]
    require(sizes[0] <= sizes[1], f"{source} has fewer numbers ({sizes[1]:,}) than its config states ({sizes[0]:,})")
    made = families.encoder_family(kind)
    try:
        with _quiet(), parsing():
            model, report = getattr(families.transformers_library(), made.model).from_pretrained(
                None,
                config=families.config_of(kind, architecture.options),
                state_dict=tensors,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported, and refused below
                **dict(made.arguments),
            )
    except (OSError, ValueError) as error:
        raise UserError(f"{source} does not fit transformers' {kind}: {first_line(error)}") from None
    wrong = [*report["missing_keys"], *(name for name, *_shapes in report["mismatched_keys"])]
    strange = [name for name in report["unexpected_keys"] if not name.startswith(_OTHERS)]
    problems = [("missing or misshapen", sorted(map(str, wrong))), ("unexpected", sorted(strange))]
    listing = "; ".join(f"{len(names)} {what} ({few(names)})" for what, names in problems if names)
    require(not listing, f"{source} does not fit transformers' {kind}, nothing was loaded: {listing}")
    return {f"model.{name}": value for name, value in model.state_dict().items()}


def _quiet() -> Any:
    """A context without transformers' report and bars: what matters of them is in our message."""
    from contextlib import ExitStack

    log = families.transformers_library().logging
    stack, level, bars = ExitStack(), log.get_verbosity(), log.is_progress_bar_enabled()
    stack.callback(log.set_verbosity, level)
    stack.callback(log.enable_progress_bar if bars else log.disable_progress_bar)
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    return stack
