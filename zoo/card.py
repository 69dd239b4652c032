"""Model cards: Markdown with the hub's YAML header, from a checkpoint's facts and measured results."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from excb.checkpoint import exported
from excb.checkpoint.teachers import teachers_in
from excb.console import plural
from excb.errors import UserError
from excb.files import json_text
from excb.files.foreign import read_text
from excb.files.markdown import bullets, cell, line, markdown_table
from excb.hub.catalogue import Checkpoint, method_of
from excb.hub.lineage import is_distilled, labels_behind
from excb.ledger import Ledger
from excb.networks.architecture import RGB, TORCHVISION
from excb.networks.preprocessing import Preprocessing
from excb.results.result import ResultRecord, folder_name
from excb.settings import MethodSettings

from . import teachers

HUB = "hf-hub:"

# Licences that the hub has identifiers for. Any other is "other" with a name.
_LICENCES = re.compile(
    r"apache-2\.0|mit|isc|bsd-[23]-clause|[al]?gpl-[23]\.0|lgpl-2\.1|mpl-2\.0|unlicense|openrail|cc0-1\.0|"
    r"cc-by-([34]\.0|nc-[234]\.0|sa-[34]\.0|nd-4\.0|nc-sa-4\.0|nc-nd-4\.0)"
)
# Sections of a recipe that its result depends on. The others concern speed and monitoring.
_SECTIONS = ("model", "method", "views", "optim")
_CITATION = """\
```bibtex
@inproceedings{maniadis2024excb,
  title     = {Efficient Unsupervised Visual Representation Learning with Explicit Cluster Balancing},
  author    = {Maniadis Metaxas, Ioannis and Tzimiropoulos, Georgios and Patras, Ioannis},
  booktitle = {Computer Vision -- ECCV 2024},
  year      = {2024}
}
```"""


def card(source: Checkpoint | Path, results: Sequence[ResultRecord], *, place: str | None = None) -> str:
    """The model card of a checkpoint: what its files record and what was measured on it.

    Args:
        source: a row of the catalogue, or an exported folder, which records the recipe as well.
        results: measured on its weights.
        place: where `excb.load` finds what is in no repository yet; by default it is found by its name.

    Raises:
        UserError: the folder is not an exported one.
    """
    facts: dict[str, Any] = {"checkpoint": source} if isinstance(source, Checkpoint) else _facts(source)
    checkpoint: Checkpoint = facts["checkpoint"]
    network = facts.get("network") or checkpoint.network
    untested = facts.get("untested")
    student = _is_student(checkpoint, facts)
    kind = f": the {cell(network)} network of {cell(checkpoint.method)}"
    if student:
        kind = f", {teachers.teacher_summary(facts, network)}"
    encoder = f"Image encoder {cell(checkpoint.architecture.name)} without a classifier{kind}."
    parts = [
        f"---\n{_header(checkpoint, facts, results)}\n---",
        f"# {cell(checkpoint.name)}",
        f"{encoder} {cell(checkpoint.note)}".rstrip(),
        *([f"**Not tested.** The self-test was not run before publishing: {cell(untested)}"] if untested else []),
        "## Load",
        _loading(checkpoint, place, student=facts.get("network") == "student"),
        _images(checkpoint.preprocessing),
        "## Training",
        markdown_table(["what", "value"], [*_training(checkpoint, facts), *_recipe_values(facts.get("recipe") or {})]),
        *(teachers.section(facts) if student else []),
        "## Results",
        *_results(results),
        "## Licence",
        cell(checkpoint.licence or "None is stated."),
        *teachers.licences(facts, checkpoint.licence),
        *(["## Cite", _CITATION] if "ExCB" in checkpoint.method else []),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(folder: Path) -> dict[str, Any]:
    """Our block of an exported folder's config.json, with its catalogue row read or built."""
    file = folder / "config.json"
    try:
        facts = exported.facts_from(json_text.parse(read_text(file))["excb"])
        row = facts.get("checkpoint") or {
            "name": folder.name,
            "method": method_of(facts.get("recipe")),
            "architecture": facts["architecture"],
            "preprocessing": facts["preprocessing"],
            "source": "own run",
        }
        if teachers_in(facts.get("recipe")):  # whatever the row calls it
            row = row | {"method": method_of(facts["recipe"])}
        return facts | {"checkpoint": Checkpoint.from_dict(row)}
    except (AttributeError, KeyError, OSError, TypeError, UserError, ValueError) as error:
        raise UserError(f"{file} was not written by `excb-zoo export` ({error})") from None


# The Hub's name of the task that a figure is of, by what the figure's name begins with; all others are classification.
_TASKS = {
    ("bbox_", "segm_", "voc_"): "object-detection",
    ("dense_",): "image-segmentation",
    ("retrieval_", "revisited_", "copies_"): "image-feature-extraction",
}


def _task_of(figure: str) -> str:
    return next((task for names, task in _TASKS.items() if figure.startswith(names)), "image-classification")


def _header(checkpoint: Checkpoint, facts: dict[str, Any], results: Sequence[ResultRecord]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    measured = []
    for result in results:
        images = line(folder_name(str(_images_of(result, "test").get("root", "")))) or "unknown"
        measured += [
            EvalResult(
                task_type=_task_of(figure),
                dataset_type=images[3:] if images.startswith("hf:") else re.sub(r"[^\w.-]+", "-", images),
                dataset_name=images,
                metric_type="accuracy" if re.search(r"_top[15](_|$)", figure) else line(figure),
                metric_value=value,
                metric_name=line(figure),
                metric_config=f"{line(result.protocol)} {result.protocol_hash}",
            )
            for figure, value in result.figures.items()
        ]
    licence = re.sub(r"[^a-z0-9.]+", "-", (checkpoint.licence or "").lower()).strip("-")
    has_identifier = _LICENCES.fullmatch(licence) is not None
    trained_on = str((facts.get("training") or {}).get("data", ""))
    header: str = ModelCardData(
        library_name="timm" if _is_timms(checkpoint) else "excb",
        pipeline_tag="image-feature-extraction",
        tags=[
            "image-feature-extraction",
            *(["timm"] if _is_timms(checkpoint) else []),
            *_learning(checkpoint, facts),
            line(checkpoint.method).lower(),
        ],
        license=licence if has_identifier else "other" if licence else None,
        license_name=licence if licence and not has_identifier else None,
        datasets=[line(trained_on.removeprefix("hf:"))] if trained_on.startswith("hf:") else None,
        model_name=line(checkpoint.name) if measured else None,
        eval_results=measured or None,
    ).to_yaml()
    return header.strip()


def _is_student(checkpoint: Checkpoint, facts: dict[str, Any]) -> bool:
    return is_distilled(checkpoint.method, facts.get("recipe"), facts.get("teachers") or ())


def _learning(checkpoint: Checkpoint, facts: dict[str, Any]) -> list[str]:
    """Tags of what the network learned from: no labels only where that is known of it and all its teachers."""
    labels = labels_behind(checkpoint.method, facts.get("recipe"), facts.get("teachers") or ())
    distilled = ["knowledge-distillation"] if _is_student(checkpoint, facts) else []
    return distilled + (["self-supervised"] if labels == "none" else [])


def _is_timms(checkpoint: Checkpoint) -> bool:
    """Whether timm can build the network by its name."""
    name = checkpoint.architecture.name
    return checkpoint.architecture.timm_name is not None or name in TORCHVISION


def _loading(checkpoint: Checkpoint, kept_at: str | None, *, student: bool) -> str:
    place = next((each for each in checkpoint.locations if each.startswith(HUB)), None)
    network = ', network="student"' if student else ""
    lines = [f"excb.load({json.dumps(place or kept_at or checkpoint.name)}{network})"]
    if place and _is_timms(checkpoint):
        lines.append(f"timm.create_model({json.dumps(place)}, pretrained=True)")
    if place and checkpoint.architecture.name in TORCHVISION:
        repo, _, revision = place.removeprefix(HUB).partition("@")
        file = f'hf_hub_download("{repo}", "model.safetensors", revision="{revision or "main"}")'
        network = f"m = torchvision.models.{checkpoint.architecture.name}(); m.fc = torch.nn.Identity()"
        lines.append(f"{network}; m.load_state_dict(safetensors.torch.load_file({file}))")
    return "\n".join(["```python", *map(line, lines), "```"])


def _images(preprocessing: Preprocessing) -> str:
    channels = "RGB" if preprocessing.channels == RGB else f"{plural(preprocessing.channels, 'channel')}"
    mean, std = cell(preprocessing.mean), cell(preprocessing.std)
    return (
        f"Images: {channels} in [0, 1], {cell(preprocessing.in_words)}, normalised with mean {mean} and standard "
        f"deviation {std}."
    )


def _training(checkpoint: Checkpoint, facts: dict[str, Any]) -> list[tuple[str, Any]]:
    training, recipe, origin = (facts.get(part) or {} for part in ("training", "recipe", "origin"))
    facts_of_training = {
        "method": checkpoint.method,
        "weights from": None if checkpoint.source == "own run" else checkpoint.source,
        "file there": origin.get("file"),
        "sha256 of that file": origin.get("sha256"),
        "left out of it": ", ".join(map(str, origin.get("dropped") or ())) or None,
        "images": folder_name(str(training["data"])) if training.get("data") else None,
        "number of images": training.get("images"),
        "fingerprint of the images": training.get("fingerprint"),
        "left out of the images, or doubted": "; ".join(_ledger_lines(training)) or None,
        "steps": facts.get("step"),
        "epochs": facts["epoch"] if facts.get("epoch") is not None else checkpoint.epochs,
        "hours": f"{training['seconds'] / 3600:.3g}" if training.get("seconds") else None,
        "images a step": None if recipe else checkpoint.batch,
        "crops": None if recipe else checkpoint.crops,
        "recipe": recipe.get("name"),
        "started from": folder_name(str(recipe["init"])) if recipe.get("init") else None,
    }
    return [(name, value) for name, value in facts_of_training.items() if value is not None]


def _ledger_lines(training: dict[str, Any]) -> list[str]:
    return Ledger.from_dict(training.get("ledger") or {}).lines()


def _recipe_values(recipe: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The recipe's values; of the method's options those that differ from the paper."""
    usual = {option.name: option.default for option in dataclasses.fields(MethodSettings)}
    for section in _SECTIONS:
        for name, value in (recipe.get(section) or {}).items():
            if section != "method" or name not in usual or value != usual[name]:
                yield f"{section}.{name}", value


def _results(results: Sequence[ResultRecord]) -> list[str]:
    if not results:
        return ["None yet."]
    rows = [
        [
            figure,
            value,
            "{} to {}".format(*result.intervals[figure]) if figure in result.intervals else "",
            folder_name(str(_images_of(result, "test").get("root", ""))),
            f"{result.protocol} {result.protocol_hash}",
            result.environment.get("device", ""),
            f"{result.seconds / 3600:.3g}",
        ]
        for result in results
        for figure, value in result.figures.items()
    ]
    head = ["figure", "percent", "95 % interval", "test images", "protocol", "hardware", "hours"]
    return [markdown_table(head, rows), *map(_protocol, results)]


def _protocol(result: ResultRecord) -> str:
    described = [
        (
            f"{part} images",
            {folder_name(str(each.get("root", ""))): each.get("images"), "hash": each.get("fingerprint")},
        )
        for part in ("train", "test")
        if (each := _images_of(result, part))
    ]
    with_what = {name: result.environment[name] for name in ("excb", "torch", "cores") if name in result.environment}
    last = [("measured", result.created), ("with", with_what), *(("note", note) for note in result.remarks)]
    values = [*described, *result.settings.items(), *last]
    return f"### {cell(result.protocol)} {result.protocol_hash}\n\n{bullets(values)}"


def _images_of(result: ResultRecord, part: str) -> dict[str, Any]:
    images = result.data.get(part)
    return images if isinstance(images, dict) else {}
