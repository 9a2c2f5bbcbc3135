"""Sources: images with ids and labels from folders, archives, tables, the hub and the official files of data sets."""

from secondlook.sources.folder import LeftOutWarning
from secondlook.sources.in_memory import ArraySource
from secondlook.sources.opening import READING_OPTIONS, open_source
from secondlook.sources.schemes import SCHEMES, Scheme, scheme
from secondlook.sources.selection import SELECTION_OPTIONS, Selection
from secondlook.sources.source import Batch, ReadingRules, Skipped, Source, UnreadableImageError
from secondlook.sources.spec import Spec, parse_spec
from secondlook.sources.subset import Subset

__all__ = [
    "READING_OPTIONS",
    "SCHEMES",
    "SELECTION_OPTIONS",
    "ArraySource",
    "Batch",
    "LeftOutWarning",
    "ReadingRules",
    "Scheme",
    "Selection",
    "Skipped",
    "Source",
    "Spec",
    "Subset",
    "UnreadableImageError",
    "open_source",
    "parse_spec",
    "scheme",
]
