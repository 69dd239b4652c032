"""The table of sources of named data sets, one file each."""

from collections.abc import Sequence

from excb.sources import hub_sets, torchvision_sets
from excb.sources.source import SetSource

SOURCES: tuple[SetSource, ...] = (torchvision_sets.SOURCE, hub_sets.SOURCE)


def source_of(text: str, sources: Sequence[SetSource] = SOURCES) -> tuple[SetSource, str] | None:
    """The source that a text names by its prefix, and the data set's name; None for folders and shards."""
    prefix, colon, name = text.partition(":")
    source = next((source for source in sources if source.prefix == prefix.lower()), None)
    return (source, name) if source is not None and colon else None
