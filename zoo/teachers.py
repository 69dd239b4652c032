"""The parts of a model card on a student's teachers: what they are, whether labels reached them, their licences."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from excb.checkpoint.teachers import Labels, labels_of_teachers, teachers_in
from excb.console import plural
from excb.files.markdown import cell, markdown_table
from excb.hub.lineage import WITH_TEXTS, is_distilled
from excb.results.result import folder_name

_PREFIXED = re.compile(r"[a-z][a-z0-9-]+:")  # hf-hub:, timm:, https:; a drive's letter alone is none
_HEAD = ("teacher", "method", "trained on", "licence", "source", "network", "parameters", "input", "sha256")
_OF_ALL: dict[Labels, str] = {
    "used": "Through its teachers it depends on labels.",
    "unknown": "Whether it depends on labels through its teachers is not known.",
    "none": "No labels reached it through its teachers.",
}


def shown(name: str) -> str:
    """A teacher's name for others: of a path only what says which run it is, of an address nothing of its query."""
    if _PREFIXED.match(name):
        return name.partition("?")[0] if "://" in name else name
    return folder_name(name)


def teacher_summary(facts: Mapping[str, Any], network: str) -> str:
    """The rest of a sentence that says what kind of network a student is.

    Args:
        facts: of its exported folder, valid ones; "teachers" may be missing.
        network: "teacher" or "student", the two networks of a run.
    """
    which = {"teacher": "a moving average of the student's weights", "student": "the student's weights"}
    names = [teacher["name"] for teacher in facts.get("teachers") or ()] or teachers_in(facts.get("recipe"))
    teachers = ", ".join(cell(shown(name)) for name in names) or "teachers that are not recorded"
    return f"distilled from {teachers}: {which.get(network, cell(network))}"


def section(facts: Mapping[str, Any]) -> list[str]:
    """The card's section on the teachers: the student's own images, and of each teacher a row and a sentence.

    Args:
        facts: of a student's exported folder, valid ones; "teachers" may be missing.
    """
    teachers: Sequence[Mapping[str, Any]] = facts.get("teachers") or ()
    labels = labels_of_teachers(teachers, facts.get("recipe")) if teachers else "unknown"
    sentences = [f"- {cell(shown(teacher['name']))}: {_sentence(teacher)}" for teacher in teachers]
    described = [markdown_table(_HEAD, [_row(teacher) for teacher in teachers]), "\n".join(sentences)]
    return [
        "## Teachers",
        "This network is a student: it learned what frozen networks make of its own images, and was shown no labels. "
        f"Its own images: {_own_images(facts.get('training') or {})}. {_OF_ALL[labels]}",
        *(described if teachers else ["Nothing else is recorded of its teachers."]),
    ]


def licences(facts: Mapping[str, Any], licence: str | None) -> list[str]:
    """A sentence for each teacher whose licence is known and is not the student's."""
    own = f"under {cell(licence)}" if licence else "under no stated licence"
    return [
        f"The teacher {cell(shown(teacher['name']))} is under {cell(teacher['licence'])}, this student {own}."
        for teacher in facts.get("teachers") or ()
        if teacher["licence"] and not same_licence(licence or "", teacher["licence"])
    ]


def same_licence(one: str, other: str) -> bool:
    """Whether two spellings name the same licence."""
    one, other = (re.sub(r"[^a-z0-9.]", "", each.lower()) for each in (one, other))
    return one == other


def _own_images(training: Mapping[str, Any]) -> str:
    name = cell(folder_name(str(training["data"]))) if training.get("data") else "not recorded"
    return name if training.get("images") is None else f"{name}, {plural(training['images'], 'image')}"


def _row(teacher: Mapping[str, Any]) -> list[Any]:
    architecture, (resize, crop) = teacher["architecture"], teacher["input"]
    options = ", ".join(f"{name}={value}" for name, value in architecture["options"].items())
    return [
        shown(teacher["name"]),
        *(teacher[field] or "not recorded" for field in ("method", "pretrained_on", "licence", "source")),
        f"{architecture['name']} ({options})" if options else architecture["name"],
        f"{teacher['parameters']:,}",
        f"resize {resize}, crop {crop}",
        teacher["sha256"][:16],
    ]


def _sentence(teacher: Mapping[str, Any]) -> str:
    """Whether labels were used to train a teacher, and how they reached it where that is not plain."""
    if teacher["labels"] == "none":
        return "no labels were used to train this teacher."
    if teacher["labels"] == "unknown":
        return "whether labels were used to train this teacher is not known."
    how = ""
    if is_distilled(teacher["method"]):
        how = " They reached it through its own teachers."
    elif teacher["method"] in WITH_TEXTS:
        how = " They are texts that describe images, and reached it directly or through a teacher of its own."
    return f"**labels were used to train this teacher.**{how}"
