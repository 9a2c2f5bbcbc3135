"""Sources: images with ids and labels from folders, arrays, tables, object stores and the Hugging Face hub."""

from secondlook.sources.array_source import ArraySource
from secondlook.sources.loading import open_source
from secondlook.sources.object_sources import read_image
from secondlook.sources.source import (
    SOURCES,
    OnError,
    ReadOptions,
    Source,
    UnreadableImageError,
    source_scheme,
)

__all__ = [
    "SOURCES",
    "ArraySource",
    "OnError",
    "ReadOptions",
    "Source",
    "UnreadableImageError",
    "open_source",
    "read_image",
    "source_scheme",
]
