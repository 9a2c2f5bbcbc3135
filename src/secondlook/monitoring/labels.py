"""Reviewed labels: what people found the true classes of images to be, from a table or from Python."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from secondlook.arrays import is_whole_number
from secondlook.errors import MonitoringError
from secondlook.registry import did_you_mean
from secondlook.tables import unescape_formula

Labels = Mapping[str, int | str] | Iterable[tuple[str, int | str]]
"""The class of each image by its id: an index or a name."""


def read_labels(path: str | Path) -> dict[str, str]:
    """Read a CSV file of reviewed labels, with the columns id and label; images without a label are left out."""
    where = f"reviewed labels {str(path)!r}"
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            missing = {"id", "label"} - set(rows.fieldnames or ())
            if missing:
                raise MonitoringError(
                    f"{where} have no column {' and '.join(map(repr, sorted(missing)))}; expected a CSV file whose "
                    "first line is id,label."
                )
            pairs = [
                (unescape_formula(row["id"] or ""), unescape_formula((row["label"] or "").strip())) for row in rows
            ]
    except OSError as error:
        raise MonitoringError(f"cannot read {where}: {error.strerror}; check the path.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise MonitoringError(f"cannot read {where}: {error}; expected a CSV file in UTF-8.") from None
    return {id_: str(label) for id_, label in collect_labels((id_, label) for id_, label in pairs if label).items()}


def collect_labels(labels: Labels) -> dict[str, int | str]:
    """Return labels by id; an image that is listed with two different ones is an error."""
    collected: dict[str, int | str] = {}
    for id_, label in labels.items() if isinstance(labels, Mapping) else labels:
        if collected.setdefault(str(id_), label) != label:
            raise MonitoringError(
                f"image {id_!r} has two labels, {collected[str(id_)]!r} and {label!r}; keep the correct one."
            )
    return collected


def find_class(label: object, class_names: tuple[str, ...] | None, id_: str) -> int:
    """Return the index of a class, given by its name or its index, as a number or as text.

    A text that is the name of a class is one, even if it looks like a number.
    """
    names = class_names or ()
    if isinstance(label, str) and label in names:
        return names.index(label)
    index = int(label) if is_whole_number(label) or (isinstance(label, str) and label.isdecimal()) else -1
    if index < 0 or (names and index >= len(names)):
        known = f"one of the {len(names)} class names or an index below {len(names)}" if names else "a class index"
        hint = did_you_mean(label, names) if isinstance(label, str) else ""
        raise MonitoringError(f"label {label!r} of image {id_!r} is no class of the policy; expected {known}.{hint}")
    return index
