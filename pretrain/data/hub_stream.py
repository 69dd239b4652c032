"""`hf-stream:ID`: the Parquet files of a data set of the Hugging Face Hub, read as a stream."""

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from excb.errors import UserError, nearest_name, require
from excb.images.image_set import CodedImages
from excb.images.shards import Note
from excb.remote import byte_ranges
from excb.sources.opening import training_images

from .stream_images import StreamImages, trouble

PREFIX = "hf-stream:"
BUFFER = 4096  # images
_OPTIONS = ("split", "buffer")


def open_training(data: str | None, listed: Path | None, note: Note) -> CodedImages | StreamImages:
    """Open the training images: a stream, or what `excb.sources.opening.training_images` opens.

    Raises:
        UserError: there are none, or they cannot be used.
    """
    if data is None or not data.startswith(PREFIX):
        return training_images(data, listed, note)
    require(listed is None, f"--list names files, and {data} is a stream: leave one of them out")
    return open_stream(data)


def refuse_stream(data: str | None, command: str) -> None:
    """Refuse a stream for a command that needs access to images by index.

    Raises:
        UserError: the data is a stream.
    """
    if data is not None and data.startswith(PREFIX):
        raise UserError(
            f"{command} needs images in files or tar shards, and {data} is a stream: store a part of "
            "it there and name that"
        )


def open_stream(text: str) -> StreamImages:
    """Open a data set named as hf-stream:ID[@CONFIG][,split=train][,buffer=4096]; ID is one of the Hub's, or a folder.

    Raises:
        UserError: it cannot be read, is not made of Parquet files, or has no images.
    """
    place, *words = text.removeprefix(PREFIX).split(",")
    name, _, config = place.partition("@")
    require(bool(name), f"{PREFIX} needs a data set's name, as in {PREFIX}ILSVRC/imagenet-1k,split=train")
    options = dict[str, str]()
    for word in words:
        key, equals, value = word.partition("=")
        if key not in _OPTIONS or not equals or not value or key in options:
            raise UserError(
                f"{text}: write {', '.join(f'{option}=' for option in _OPTIONS)} once each, not {word!r}"
                f"{nearest_name(key, _OPTIONS)}"
            )
        options[key] = value
    buffer = options.get("buffer", str(BUFFER))
    require(buffer.isdecimal() and int(buffer) > 0, f"{text}: buffer takes a number above zero, not {buffer!r}")
    files = _find(text, name, config, options.get("split", "train"))
    try:
        with ThreadPoolExecutor(byte_ranges.ASK_TOGETHER) as pool:
            sizes, columns = zip(*pool.map(_inspect, files), strict=True)
    except trouble() as error:
        raise UserError(f"cannot read {text}: {byte_ranges.reason(error)}") from None
    require(bool(columns[0]) and sum(sizes) > 1, f"{text} has no images: choose a data set with a column of type Image")
    return StreamImages(text, files, sizes, columns[0], int(buffer))


def _find(text: str, name: str, config: str, split: str) -> tuple[str, ...]:
    """The Parquet files of a split."""
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise UserError(f"{PREFIX} needs the package `datasets`: pip install 'excb[datasets]'") from None
    library.disable_progress_bars()
    try:
        splits = library.load_dataset_builder(name, config or None).config.data_files or {}
    except trouble() as error:
        raise UserError(f"cannot open {text}: {byte_ranges.reason(error)}") from None
    if split not in splits:
        raise UserError(f"{text} has no split {split!r}, only {', '.join(map(str, splits))}: add ,split=NAME")
    files = tuple(map(str, splits[split]))
    if wrong := [file for file in files if not file.endswith(".parquet")]:
        raise UserError(
            f"{text} is not made of Parquet files ({wrong[0].rpartition('/')[2]}): convert it, or write "
            "tar shards of it"
        )
    return files


def _inspect(file: str) -> tuple[int, str]:
    """Number of rows of a Parquet file, and name of its first column of images (by type), empty if there is none."""
    import pyarrow.parquet
    from pyarrow import types

    with byte_ranges.open_sequential(file) as stream, pyarrow.parquet.ParquetFile(stream) as parquet:
        for field in parquet.schema_arrow:
            if types.is_struct(field.type) and {part.name for part in field.type} == {"bytes", "path"}:
                return parquet.metadata.num_rows, field.name
        return parquet.metadata.num_rows, ""
