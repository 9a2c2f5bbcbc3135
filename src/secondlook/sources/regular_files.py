"""Limits and errors of files from users."""

import os
import platform
from collections.abc import Collection
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.file_systems import is_url
from secondlook.registry import did_you_mean
from secondlook.specs import Spec

MAX_TEXT_BYTES = 1_000_000_000
"""Maximum size of a table, of a file of class names and of a file of indices."""

MAX_LOADED_BYTES = 4 * 2**30
"""Maximum size of the contents of one file that are loaded into memory together."""

MAX_LOADED_ROWS = 20_000_000
"""Maximum number of rows of one file: each image, label and name takes a Python object."""


def make_absolute(path: Path) -> Path:
    """Return the absolute path of a file, without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def find_name(name: str, names: Collection[str], what: str, where: str, hint: str = "") -> str:
    """Check that `names` contains a column or an array (`what`); `hint` is added to the error."""
    if name not in names:
        listed = ", ".join(names) or "none"
        raise SourceError(f"no {what} {name!r} in {where!r}; its {what}s: {listed}{hint}.{did_you_mean(name, names)}")
    return name


def find_column(spec: Spec, option: str, columns: Collection[str]) -> str:
    """Return the column given by an option; by default, the column has the name of the option."""
    name = spec.options.get(option, option)
    return find_name(name, columns, "column", spec.location, f"; name the column with ?{option}=COLUMN")


def reject_url(path: str, where: str) -> None:
    """Raise for a URL in a list of paths."""
    if is_url(path):
        repair = "for remote images use folder:, parquet: or webdataset: with the URL of the folder"
        raise SourceError(f"{where} is the URL {path!r}, but lists and tables support local files only", repair=repair)


def missing_root_error(root: object) -> SourceError:
    """Return the error for a missing folder, bucket or file of images (not for a single missing image)."""
    repair = "restore or mount it on all machines, or move the images to storage that all machines can reach"
    return SourceError(f"{str(root)!r} does not exist on this machine ({platform.node()})", repair=repair)
