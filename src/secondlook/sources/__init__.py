"""Sources: images with ids and labels from folders, archives, tables, the hub and the official files of data sets."""

from secondlook.sources.decoding import decode_file
from secondlook.sources.folder import IgnoredFilesWarning
from secondlook.sources.image_files import FileSource
from secondlook.sources.in_memory import ArraySource
from secondlook.sources.opening import READING_OPTIONS, open_source
from secondlook.sources.schemes import SOURCES, SourceScheme, source_scheme
from secondlook.sources.selection import SELECTION_OPTIONS, Selection, SubsetName
from secondlook.sources.source import HOW_TO_SKIP, Batch, OnError, ReadOptions, Skipped, Source, UnreadableImageError
from secondlook.sources.spec import Spec, parse_spec
from secondlook.sources.subset import Subset, read_indices

__all__ = [
    "HOW_TO_SKIP",
    "READING_OPTIONS",
    "SELECTION_OPTIONS",
    "SOURCES",
    "ArraySource",
    "Batch",
    "FileSource",
    "IgnoredFilesWarning",
    "OnError",
    "ReadOptions",
    "Selection",
    "Skipped",
    "Source",
    "SourceScheme",
    "Spec",
    "Subset",
    "SubsetName",
    "UnreadableImageError",
    "decode_file",
    "open_source",
    "parse_spec",
    "read_indices",
    "source_scheme",
]
