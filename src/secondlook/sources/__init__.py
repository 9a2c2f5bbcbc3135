"""Sources: images with ids and labels from folders, arrays, tables, the Hugging Face hub and official files."""

from secondlook.sources.folder import IgnoredFilesWarning
from secondlook.sources.image_files import FileSource, decode_file
from secondlook.sources.image_objects import read_image
from secondlook.sources.labels import is_text
from secondlook.sources.loading import open_labeled, open_source
from secondlook.sources.object_sources import stack_images
from secondlook.sources.source import (
    DECODING_THREADS,
    SOURCES,
    ArraySource,
    Batch,
    LargeImageError,
    OnError,
    ReadOptions,
    Skipped,
    Source,
    SourceScheme,
    UnreadableImageError,
    source_scheme,
)
from secondlook.sources.subset import Subset, SubsetName, read_indices, spread_images

__all__ = [
    "DECODING_THREADS",
    "SOURCES",
    "ArraySource",
    "Batch",
    "FileSource",
    "IgnoredFilesWarning",
    "LargeImageError",
    "OnError",
    "ReadOptions",
    "Skipped",
    "Source",
    "SourceScheme",
    "Subset",
    "SubsetName",
    "UnreadableImageError",
    "decode_file",
    "is_text",
    "open_labeled",
    "open_source",
    "read_image",
    "read_indices",
    "source_scheme",
    "spread_images",
    "stack_images",
]
