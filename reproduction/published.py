"""The numbers that the paper prints: Tables 2 to 5 and the supplement, and Table 1, as fractions of 1."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

METRICS = {"AORC": "aorc_joint", "eAURC": "eaurc_joint", "AUPR": "aupr", "AUROC": "auroc"}
"""What a metric of the paper is called here. Its AORC and eAURC are on joint risk, whatever its text says."""

TABLE_1_COLUMNS = {
    "SVHN (0.905)": ("SVHN", "", 0.905),
    "CIFAR-100 (0.727)": ("CIFAR-100", "", 0.727),
    "STL-10 with flip augmentation (0.888)": ("STL-10", "with", 0.888),
    "STL-10 without (0.864)": ("STL-10", "without", 0.864),
}
"""The heads of Table 1's columns: data set, training with flips, accuracy."""


@dataclass(frozen=True)
class PublishedColumn:
    """Which column of which table; `flip` says whether flips were used in training, where the paper says so."""

    table: int
    data_set: str
    arch: str = ""
    flip: str = ""


@dataclass(frozen=True)
class Published:
    """One printed number. The paper prints all of them times 100; here they are not."""

    column: PublishedColumn
    by: Literal["x", "D"]
    metric: str
    k: int
    accuracy: float
    method: str
    value: float


@cache
def published_values() -> tuple[Published, ...]:
    """Return the numbers of Tables 2 to 5 and of the supplement, then those of Table 1."""
    return (*map(_value_of, _rows("published.csv")), *_single_views())


def published_value(column: PublishedColumn | None, by: str, metric: str, k: int, method: str) -> Published | None:
    """Return the printed number for a cell of a table, or None where the paper has none."""
    return _by_cell().get((column, by, metric, k, method))


@cache
def _by_cell() -> dict[tuple[PublishedColumn | None, str, str, int, str], Published]:
    return {(one.column, one.by, one.metric, one.k, one.method): one for one in published_values()}


def _value_of(row: dict[str, str]) -> Published:
    return Published(
        column=PublishedColumn(int(row["table"]), row["dataset"], row["arch"], row["flip"]),
        by="x" if row["predict_by"] == "x" else "D",
        metric=METRICS[row["metric"]],
        k=int(row["task"].removeprefix("top-")),
        accuracy=float(row["accuracy"]),
        method=row["method"],
        value=float(row["value"]) / 100,
    )


def _single_views() -> list[Published]:
    return [
        Published(
            PublishedColumn(1, data_set, flip=flip), "x", "aorc_joint", 1, accuracy, row["transformation"],
            float(row[head]) / 100,
        )
        for row in _rows("table1.csv")
        for head, (data_set, flip, accuracy) in TABLE_1_COLUMNS.items()
    ]  # fmt: skip


def _rows(name: str) -> list[dict[str, str]]:
    text = files("reproduction").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
