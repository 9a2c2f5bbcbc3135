"""The file that an image of a source was read from, where there is one."""

from pathlib import Path

from secondlook.sources import FileSource, Source, Subset


def has_files(source: Source) -> bool:
    """Whether every image of the source is a file of its own."""
    return has_files(source.whole) if isinstance(source, Subset) else isinstance(source, FileSource)


def original_file(source: Source, index: int) -> Path | None:
    """Return the absolute path of an image's file, or None where the source has no files."""
    if isinstance(source, Subset):
        return original_file(source.whole, int(source.positions[index]))
    return source.paths[index].absolute() if isinstance(source, FileSource) else None
