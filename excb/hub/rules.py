"""The rules for a row of the catalogue, wherever it comes from."""

from typing import Any

from excb.errors import UserError
from excb.files import records
from excb.files.records import (
    Field,
    RecordError,
    all_of,
    boolean,
    condition,
    list_of,
    matching,
    number_in,
    one_of,
    record_of,
    table_of,
    words,
)
from excb.networks.rules import PREPROCESSING, preprocessing_from
from excb.remote.hashes import DIGEST
from excb.remote.home import folder_of
from excb.remote.wheels import PLACE

MOST = 1e15  # of any number: TOML sets no bounds, and whoever shows one does not expect a thousand digits
REQUIRED = ("method", "architecture", "source")

_TEXT = Field(words, "one line of text")
_TEXTS = Field(list_of(words), "a list of lines of text")
_COUNT = Field(number_in(1, MOST, integer=True), "a whole number above 0")
_LOCATION = matching(r"https?://[!-~]+|hf-hub:[\w.-]+/[\w.-]+(@[\w./-]+)?|" + PLACE)
_ARCHITECTURE = record_of({"name": words, "options": table_of(records.anything, words)}, required=["name"])
_FIGURES = table_of(table_of(number_in(-MOST, MOST), words), words)


def _is_whole(values: dict[str, Any]) -> bool:
    try:
        preprocessing_from(values)
    except RecordError:
        return False
    return True


# Every field, its rule, and the rule in words.
FIELDS = {
    "name": _TEXT,
    "method": _TEXT,
    "architecture": Field(_ARCHITECTURE, 'a table as { name = "resnet50" }, with or without options'),
    "preprocessing": Field(
        all_of(record_of({name: rule for name, (rule, _) in PREPROCESSING.items()}), condition(_is_whole)),
        "a table of resize, crop, mean, std, interpolation and crop_mode, or of some of them, for as many channels as "
        "pixels has",
    ),
    "source": _TEXT,
    "aliases": _TEXTS,
    "locations": Field(
        list_of(_LOCATION), 'a list of "hf-hub:user/repo@revision", "https://..." or "pypi:PACKAGE==VERSION/PATH"'
    ),
    "also_at": Field(list_of(matching(r"hf-hub:[\w.-]+/[\w.-]+")), 'a list of "hf-hub:user/repo"'),
    "digest": Field(matching(DIGEST), '"sha256:" or "md5:" and 8 digits or more'),
    "layout": _TEXT,
    "network": Field(one_of("teacher", "student"), '"teacher" or "student"'),
    "epochs": _COUNT,
    "batch": _COUNT,
    "crops": _TEXT,
    "pretrained_on": _TEXT,
    "licence": _TEXT,
    "redistributable": Field(boolean, "true or false"),
    "terms": Field(records.line, "one line of text"),
    "figures": Field(_FIGURES, 'tables as "ExCB, Table 1" = { linear_top1 = 76.5 }'),
    "globals": _TEXTS,
    "note": Field(records.line, "one line of text"),
}


def check_row(values: dict[str, Any]) -> None:
    """Refuse what is not a row: fields missing or unknown, values of another kind, names that could lead elsewhere.

    Raises:
        UserError: says which field, and what it must be.
    """
    name = values.get("name")
    if not isinstance(name, str):
        raise UserError("a checkpoint must have a name")
    try:
        records.check_record(values, FIELDS, what=f"checkpoint {name!r}", required=REQUIRED)
    except RecordError as error:
        raise UserError(str(error)) from None
    for each in (name, *values.get("aliases", ())):
        try:
            folder_of(each)  # refuses names that could lead elsewhere
        except UserError as error:
            raise UserError(f"checkpoint {name!r}: {error}") from None
    if values.get("redistributable") and "licence" not in values:
        raise UserError(f"checkpoint {name!r}: redistributable needs the licence that allows it")
